"""A model of Transformers in the real flow, in one process: registered, loaded by plain MLflow, rolled back."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.retrain import retrain
from tasks.registry.aliases import champion_of
from tasks.rollback import rollback
from tasks.trackers.mlflow_run import connect
from tasks.verify import verify
from training.records import Release
from training.storage.paths import Home

pytest.importorskip("transformers", reason="install the extras by: make setup EXTRAS=all")
pytestmark = [pytest.mark.frameworks, pytest.mark.usefixtures("prefect_harness")]

_RECIPE = """
from evergreen import Digits, Recipe, Transformers

def build_model(shape, outputs):
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(
        image_size=shape[1], patch_size=4, num_channels=shape[0], hidden_size=32, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=64, initializer_range=0.2, num_labels=outputs,
    ))

recipe = Recipe("vit", "for a test", Digits(), trainer=Transformers(build_model, learning_rate=2e-3))
"""
_PLAIN = """
import sys, mlflow, numpy as np
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model("models:/vit@champion")
answers = [model.predict(np.zeros((n, 1, 8, 8), np.uint8)) for n in (1, 3, 64)]
assert [a.shape for a in answers] == [(1, 10), (3, 10), (64, 10)]
assert all(np.allclose(a.sum(1), 1, atol=1e-5) for a in answers)
tops = {name.partition(".")[0] for name in sys.modules}
assert not tops & {"training", "tasks", "flows", "evergreen"}, tops  # MLflow itself may import Transformers
"""


def night(recipe: str, **training: Any) -> Release:
    gate = {"floor": 0.0, "policy": "not_worse", "margin": 0.9, "max_class_drop": 0.99}
    sections = {"scaling": {"num_workers": 0}, "tracking": {"system_metrics": False}, "gate": gate}
    return retrain(recipe, {"training": {"epochs": 2, **training}, **sections})


def test_a_model_is_registered_loaded_by_plain_mlflow_and_rolled_back(home: Home, tmp_path: Path) -> None:
    recipe = str(tmp_path / "vit.py")
    Path(recipe).write_text(_RECIPE)
    first = night(recipe)
    assert first.alias == "champion"
    assert Path(first.report).is_file()
    subprocess.run([sys.executable, "-c", _PLAIN, home.mlflow_uri], cwd=tmp_path, check=True)

    second = night(recipe, epochs=3)
    assert (second.version, second.alias) == ("2", "champion")
    assert [one.name for one in verify(home.run("vit", second.run_key), home) if one.ok is False] == []
    assert rollback.fn(str(home.root), "vit", "for a test") == ("2", "1")
    assert champion_of(connect(None, home), "vit") == "1"
