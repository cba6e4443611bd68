"""A small BERT that starts from a folder of Transformers, then from the champion: the real flow, in one process."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_texts import write_csv

from flows.cli.summary import print_preview
from flows.preview import preview
from flows.retrain import retrain
from tasks.trackers.mlflow_run import connect
from tasks.verify import verify
from training.checkpoints.weights import digest_of_file, load_weights
from training.errors import SettingError
from training.records import Release
from training.storage.paths import Home

for library in ("tokenizers", "transformers"):
    pytest.importorskip(library, reason="install the extras by: make setup EXTRAS=all")
pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.usefixtures("prefect_harness")]

_RECIPE = """
from pathlib import Path
from evergreen import DataSettings, GateSettings, Recipe, ScalingSettings, Settings, Text, TrackingSettings
from evergreen import Transformers

BERT = Path(__file__).parent / "bert"

def build_model(shape, outputs):
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig.from_pretrained(BERT, num_labels=outputs))

recipe = Recipe(
    "films",
    source=Text("rows.csv"),
    trainer=Transformers(
        build_model, tokenizer="bert", epochs=2, global_batch_size=40, learning_rate=3e-3, init_from=Path("bert"),
        init_head="new", freeze=("bert.embeddings",),
    ),
    files=("bert/config.json",),
    settings=Settings(
        data=DataSettings(max_tokens=16),
        scaling=ScalingSettings(num_workers=0),
        tracking=TrackingSettings(system_metrics=False),
        gate=GateSettings(floor=0.0, policy="not_worse", margin=0.9, max_class_drop=0.99),
    ),
)
"""


def write_bert(folder: Path, texts: list[str]) -> None:
    """A base model without head, and its tokenizer, as Transformers writes them."""
    from transformers import BertConfig, BertModel

    from training.data.text.tokenizers import train

    tokenizer = train(texts, 400, 16)
    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=tokenizer.vocabulary, pad_token_id=tokenizer.padding, max_position_embeddings=16,
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, initializer_range=0.1,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer.content)


def night(recipe: str, **training: Any) -> Release:
    return retrain(recipe, {"training": training})


def test_a_folder_starts_the_first_model_and_the_champion_the_next(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = write_csv(tmp_path / "rows.csv", 400)
    write_bert(tmp_path / "bert", rows.read_text().splitlines())
    recipe = str(tmp_path / "films.py")
    Path(recipe).write_text(_RECIPE)
    first = night(recipe)
    weights = tmp_path / "bert" / "model.safetensors"
    assert first.initial == f"{tmp_path / 'bert'}, weights {digest_of_file(weights)[:16]}"
    given = {f"bert.{name}": tensor for name, tensor in load_file(weights).items()}
    trained = load_weights(home.run("films", first.run_key).model / "weights.safetensors")
    same = {name for name in given if torch.equal(given[name], trained[name])}
    assert same == {name for name in given if name.startswith("bert.embeddings.")}
    assert first.alias == "champion"
    with pytest.raises(SettingError, match=r"another head: they lack classifier\.bias.*init_head=new"):
        preview(recipe, {"training": {"init_head": "keep"}}, home)

    planned = preview(recipe, {"training": {"init_from": "champion"}, "seed": 1}, home)
    print_preview(planned)
    assert planned.initial == f"films version 1, weights {first.weights_digest[:16]}"
    second = retrain(recipe, {"training": {"init_from": "champion"}}, seed=1)
    assert (second.version, second.run_key, second.initial) == ("2", planned.run_key, planned.initial)
    assert second.verdict.summary.endswith("; the candidate was fine-tuned from this version")
    assert connect(None, home).get_model_version("films", "2").tags["evergreen.parent"] == "models:/films/1"
    for release in (first, second):
        findings = verify(home.run("films", release.run_key), home)
        assert [(finding.name, finding.detail) for finding in findings if finding.ok is False] == []
    assert night(recipe).run_key == first.run_key  # the same folder again: nothing is trained
    assert capsys.readouterr().out.count(planned.initial) == 1
