"""The next command sends the trackers what they lack of a training that had finished before."""

import shutil
from pathlib import Path

import pytest
from small_runs import write_recipe
from test_tensorboard import events

from flows.retrain import retrain
from training.attempts.metrics import MetricsFile
from training.storage.paths import Home

pytestmark = pytest.mark.usefixtures("prefect_harness")

SETTINGS = {
    "scaling": {"num_workers": 0, "use_gpu": "no"},
    "training": {"epochs": 2},
    "tracking": {"system_metrics": False, "also": ["tensorboard"]},
    "gate": {"floor": 0.0},
    "data": {"max_train_rows": 300, "max_test_rows": 100},
}


def shown(folder: Path, name: str) -> list[int]:
    """The steps of a metric in the newest event file of TensorBoard, which has all steps."""
    newest = max(folder.glob("events.*"), key=lambda file: file.stat().st_mtime_ns)
    return [event.step for event in events(newest) for value in event.summary.value if value.tag == name]


@pytest.mark.extended
def test_a_tracker_that_lacks_all_points_gets_them(home: Home, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    retrain(recipe, SETTINGS)
    (run,) = home.runs("plain").iterdir()
    folder = run / "tensorboard"
    steps = [
        point.step for point in MetricsFile(run / "metrics.jsonl").read() if "validation/loss" in point.values
    ]
    assert shown(folder, "validation/loss") == steps
    shutil.rmtree(folder)
    (run / "release.json").unlink()
    retrain(recipe, SETTINGS)
    assert shown(folder, "validation/loss") == steps
