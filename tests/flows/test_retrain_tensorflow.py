"""A model of TensorFlow in the real flow, in one process: registered, predicts, loaded by plain MLflow, rolled back."""

import json
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from flows.retrain import retrain
from tasks import predict
from tasks.registry.aliases import champion_of
from tasks.rollback import rollback
from tasks.trackers.mlflow_run import connect
from tasks.verify import verify
from training.records import Release
from training.storage.paths import Home

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="run by: make test-tensorflow"),
    pytest.mark.usefixtures("prefect_harness"),
]

_RECIPE = """
from evergreen import Digits, Recipe, TensorFlow

def build_model(shape, outputs):
    import keras
    from keras import layers

    inputs = keras.Input(shape)
    rows = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(16, 3, padding="same")(inputs)))
    rows = layers.Dropout(0.1)(layers.Flatten()(layers.MaxPooling2D(2)(rows)))
    return keras.Model(inputs, layers.Dense(outputs)(rows))

recipe = Recipe("on_tensorflow", "for a test", Digits(), trainer=TensorFlow(build_model, learning_rate=1e-2))
"""
_PLAIN = """
import sys, numpy as np

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"evergreen", "flows", "tasks", "training"}:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
import mlflow
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model("models:/on_tensorflow@champion")
images = np.load(sys.argv[2])
np.save(sys.argv[3], model.predict(images))
for rows in (1, 3, 64):
    answer = model.predict(images[:rows])
    assert answer.shape == (rows, 10)
    assert np.allclose(answer.sum(1), 1, atol=1e-5)
"""


def night(recipe: str, **training: Any) -> Release:
    gate = {"floor": 0.0, "policy": "not_worse", "margin": 0.9, "max_class_drop": 0.99}
    sections = {"scaling": {"num_workers": 0}, "tracking": {"system_metrics": False}, "gate": gate}
    return retrain(recipe, {"training": {"epochs": 2, **training}, **sections})


def test_a_tensorflow_model_is_registered_predicts_and_is_rolled_back(home: Home, tmp_path: Path) -> None:
    recipe = str(tmp_path / "on_tensorflow.py")
    Path(recipe).write_text(_RECIPE)
    first = night(recipe)
    assert first.alias == "champion"
    assert Path(first.report).is_file()
    plan = json.loads(home.run("on_tensorflow", first.run_key).ingredients.read_text())
    assert version("tensorflow-cpu") in json.dumps(plan["ingredients"]["versions"])

    scans = (load_digits().images * 255 / 16).astype(np.uint8)[:100]
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for number, scan in enumerate(scans):
        Image.fromarray(scan).save(pictures / f"{number:03}.png")
    scored = tmp_path / "scored.parquet"
    predict.predict.fn(str(home.root), "on_tensorflow", str(pictures), str(scored))
    rows = pq.read_table(scored).to_pylist()
    assert (
        np.mean([row["class"] == str(digit) for row, digit in zip(rows, load_digits().target, strict=False)])
        > 0.7
    )

    np.save(tmp_path / "images.npy", scans[:, None])
    files = [str(tmp_path / name) for name in ("images.npy", "answers.npy")]
    subprocess.run([sys.executable, "-c", _PLAIN, home.mlflow_uri, *files], cwd=tmp_path, check=True)
    assert np.allclose(np.load(files[1]), [row["probabilities"] for row in rows], atol=1e-6)

    second = night(recipe, epochs=3)
    assert (second.version, second.alias) == ("2", "champion")
    assert [
        one.name for one in verify(home.run("on_tensorflow", second.run_key), home) if one.ok is False
    ] == []
    assert rollback.fn(str(home.root), "on_tensorflow", "for a test") == ("2", "1")
    assert champion_of(connect(None, home), "on_tensorflow") == "1"
