"""Strategies that divide a model among two Ray workers, in the real flow: gate, registry, plain MLflow, verify."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from small_runs import write_recipe

from evergreen import predict, rollback
from flows.retrain import retrain
from tasks.verify import verify
from training.records import Release
from training.storage.paths import Home

pytestmark = pytest.mark.usefixtures("prefect_harness", "ray_session")

_MODEL = """nn.Sequential(
        nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], 50), nn.BatchNorm1d(50), nn.ReLU(),
        nn.Linear(50, classes))"""
_PLAIN = """
import sys, mlflow, numpy as np
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model("models:/divided@champion")
answers = [model.predict(np.zeros((n, 1, 8, 8), np.uint8)) for n in (1, 3, 64)]
assert [a.shape for a in answers] == [(1, 10), (3, 10), (64, 10)]
assert all(np.allclose(a.sum(1), 1, atol=1e-5) for a in answers)
tops = {name.partition(".")[0] for name in sys.modules}
assert not tops & {"training", "tasks", "flows", "evergreen", "deepspeed"}, tops
"""


def night(recipe: str, **training: Any) -> Release:
    gate = {"floor": 0.3, "policy": "not_worse", "margin": 0.9, "max_class_drop": 0.99}
    settings = {"training": {"epochs": 2} | training, "tracking": {"system_metrics": False}, "gate": gate}
    return retrain(recipe, settings | {"ray": {"num_cpus": 2}})


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param("fsdp", marks=pytest.mark.slow),
        pytest.param(
            "deepspeed",
            marks=[
                pytest.mark.frameworks,
                pytest.mark.slow,
                pytest.mark.skipif(
                    find_spec("deepspeed") is None, reason="install the extras by: make setup EXTRAS=all"
                ),
            ],
        ),
    ],
)
def test_a_divided_model_passes_the_gate_and_replaces_that_of_ddp(
    home: Home, tmp_path: Path, strategy: str
) -> None:
    recipe = write_recipe(tmp_path, _MODEL, name="divided")
    whole = night(recipe)
    divided = night(recipe, strategy=strategy)
    assert (whole.version, whole.alias) == ("1", "champion")
    assert (divided.version, divided.alias) == ("2", "champion")
    assert divided.reproducible is True, divided.reproducible_reason
    assert divided.metrics["accuracy"] == pytest.approx(whole.metrics["accuracy"], abs=0.01)
    findings = verify(home.run("divided", divided.run_key), home)
    assert [finding.name for finding in findings if finding.ok is False] == []
    subprocess.run([sys.executable, "-c", _PLAIN, home.mlflow_uri], cwd=tmp_path, check=True)
    assert night(recipe, strategy=strategy).reused

    assert Path(divided.report).is_file()
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for shade in (0, 120, 255):
        Image.new("L", (8, 8), shade).save(pictures / f"{shade}.png")
    summary = predict("divided", pictures, tmp_path / "scored.parquet")
    assert (summary.version, summary.rows) == ("2", 3)
    assert rollback("divided", "for a test") == ("2", "1")
