"""A small BERT learns from texts, and its exported program needs neither Transformers nor Evergreen."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from network_runs import small_job
from small_runs import prepared
from small_texts import write_csv

from training.data.dataset import open_columns
from training.data.sources.text import Text
from training.recipe import load
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.network.serving import predictor, serving_module

for library in ("tokenizers", "transformers"):
    pytest.importorskip(library, reason="install the extras by: make setup EXTRAS=all")
pytestmark = pytest.mark.frameworks
RECIPE = """
from evergreen import Recipe, Text, Transformers

def build_model(shape, outputs):
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(
        vocab_size=shape.vocabulary, pad_token_id=shape.padding, max_position_embeddings=shape[0], hidden_size=32,
        num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, num_labels=outputs, initializer_range=0.1,
    ))

trainer = Transformers(build_model, epochs=5, global_batch_size=40, learning_rate=3e-3)
recipe = Recipe("films", source=Text(), trainer=trainer)
"""
LOADED = """
import sys
import numpy as np
import torch
program = torch.export.load(sys.argv[1]).module()
np.save(sys.argv[3], program(torch.from_numpy(np.load(sys.argv[2]))).detach().numpy())
assert not {"transformers", "training"} & set(sys.modules)
"""


def test_a_small_bert_learns_and_its_program_predicts_without_transformers(
    home: Home, tmp_path: Path
) -> None:
    source = Text(write_csv(tmp_path / "rows.csv", 400))
    version = prepared(Home(tmp_path / "texts"), source, "films", {"max_tokens": 16, "vocabulary": 400})
    recipe = tmp_path / "films.py"
    recipe.write_text(RECIPE)
    trained = launch(small_job(home, version, str(recipe), training={"global_batch_size": 40}))
    assert trained.history[-1].validation_score > 0.7  # 0.5 by chance

    module = serving_module(load(str(recipe))[0], version, trained)
    columns = open_columns(version, "test")
    ids = columns.read(np.arange(len(columns)))
    assert (ids == 0).any()  # some rows are padded
    expected = predictor(module, 512)(ids)
    rows = torch.export.Dim("rows")
    program = torch.export.export(module, (torch.from_numpy(ids),), dynamic_shapes=({0: rows},))
    torch.export.save(program, tmp_path / "model.pt2")
    np.save(tmp_path / "ids.npy", ids[:7])
    files = [str(tmp_path / name) for name in ("model.pt2", "ids.npy", "predictions.npy")]
    subprocess.run([sys.executable, "-P", "-c", LOADED, *files], cwd=tmp_path, check=True)
    assert np.allclose(np.load(files[2]), expected[:7], atol=1e-6)
