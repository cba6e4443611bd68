"""Models of other frameworks in the real flow, in one process: registered, predict, in plain MLflow, rolled back."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from framework_scenario import check_digits, check_next_night, night
from sklearn.datasets import load_breast_cancer

from tasks import predict
from training.storage.paths import Home

pytestmark = [pytest.mark.frameworks, pytest.mark.usefixtures("prefect_harness")]

_KERAS = """
from evergreen import Digits, Keras, Recipe

def build_model(shape, outputs):
    import keras
    from keras import layers

    inputs = keras.Input(shape)
    rows = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(16, 3, padding="same")(inputs)))
    rows = layers.Dropout(0.1)(layers.Flatten()(layers.MaxPooling2D(2)(rows)))
    return keras.Model(inputs, layers.Dense(outputs)(rows))

recipe = Recipe("framework", "for a test", Digits(), trainer=Keras(build_model, learning_rate=1e-2))
"""
_LIGHTNING = """
from evergreen import Digits, Lightning, Recipe

def build_module(shape, outputs):
    import lightning.pytorch as pl
    import torch
    from torch import nn

    class Classifier(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))

        def forward(self, images):
            return self.layers(images)

        def training_step(self, batch):
            images, labels = batch
            return nn.functional.cross_entropy(self(images), labels)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    return Classifier()

recipe = Recipe("framework", "for a test", Digits(), trainer=Lightning(build_module))
"""
_ACCELERATE = """
from evergreen import Accelerate, Digits, Recipe

def build_model(shape, outputs):
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))

def train(loop):
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = loop.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    loop.register(model=model, optimizer=optimizer)
    for _ in loop.epochs():
        for images, labels in loop.batches():
            outputs = model(images)
            accelerator.backward(torch.nn.functional.cross_entropy(outputs, labels) * loop.loss_weight)
            optimizer.step()
            optimizer.zero_grad()
            loop.finish_step(outputs)

recipe = Recipe("framework", "for a test", Digits(), build_model=build_model, trainer=Accelerate(train))
"""
_TRANSFORMERS = """
from evergreen import Digits, Recipe, Transformers

def build_model(shape, outputs):
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(
        image_size=shape[1], patch_size=4, num_channels=shape[0], hidden_size=32, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=64, initializer_range=0.2, num_labels=outputs,
    ))

recipe = Recipe("framework", "for a test", Digits(), trainer=Transformers(build_model, learning_rate=5e-3))
"""
_PLAIN_TABLE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"evergreen", "flows", "tasks", "training"}:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
import json, mlflow, pandas
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model(f"models:/{sys.argv[2]}@champion")
print(json.dumps(model.predict(pandas.read_csv(sys.argv[3])).tolist()))
"""


@pytest.mark.parametrize(
    ("library", "text", "least"),
    [
        ("keras", _KERAS, 0.7),
        ("lightning", _LIGHTNING, 0.7),
        ("accelerate", _ACCELERATE, 0.7),
        ("transformers", _TRANSFORMERS, 0.3),
    ],
)
def test_a_model_is_registered_predicts_and_is_rolled_back(
    library: str, text: str, least: float, home: Home, tmp_path: Path
) -> None:
    if find_spec(library) is None:  # an import of Keras would choose another backend
        pytest.skip("install the extras by: make setup EXTRAS=all")
    check_digits(home, tmp_path, text, library, ("keras", "lightning", "accelerate", "transformers"), least)


@pytest.mark.parametrize("recipe", ["breast-cancer", "breast-cancer-lightgbm"])
def test_trees_are_registered_predict_and_are_rolled_back(recipe: str, home: Home, tmp_path: Path) -> None:
    first = night(recipe, rounds=20)
    assert first.alias == "champion"
    assert Path(first.report).is_file()

    table = load_breast_cancer(as_frame=True)
    table.data[:50].to_csv(tmp_path / "rows.csv", index=False)
    predict.predict.fn(str(home.root), recipe, str(tmp_path / "rows.csv"), str(tmp_path / "scored.parquet"))
    scored = pq.read_table(tmp_path / "scored.parquet").to_pylist()
    wanted = [table.target_names[number] for number in table.target[:50]]
    assert np.mean([row["class"] == name for row, name in zip(scored, wanted, strict=True)]) > 0.9

    command = [sys.executable, "-c", _PLAIN_TABLE, home.mlflow_uri, recipe, str(tmp_path / "rows.csv")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    answers = json.loads(done.stdout.splitlines()[-1])
    probabilities = [row["probabilities"] for row in scored]
    assert np.allclose(answers, probabilities, atol=1e-6)

    check_next_night(home, recipe, night(recipe, rounds=30))
