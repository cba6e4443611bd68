"""A tracker in a separate process keeps the contract, and that process always ends."""

import os
import signal
from pathlib import Path

import psutil
import pytest
from killed_training import kill_a_training
from test_tensorboard import events
from tracker_contract import point

from tasks.trackers.base import RunInfo
from tasks.trackers.own_process import OwnProcess, TrackerProcessError


@pytest.fixture
def run(tmp_path: Path) -> RunInfo:
    return RunInfo("digits", "a" * 64, tmp_path / "run", {})


def test_the_process_ends_with_the_run(run: RunInfo) -> None:
    before = set(psutil.Process().children(recursive=True))
    tracker = OwnProcess("tensorboard")
    tracker.begin(run)
    assert set(psutil.Process().children(recursive=True)) - before
    tracker.end("FINISHED")
    assert set(psutil.Process().children(recursive=True)) <= before


def test_points_stay_visible_when_the_training_process_is_killed(run: RunInfo) -> None:
    kill_a_training(run.folder, "tensorboard")
    (file,) = (run.folder / "tensorboard").glob("events.*")
    assert [event.step for event in events(file) if event.summary.value[:1]] == [0, 1, 2, 0]


def test_tensorboard_imports_neither_torch_nor_comet(run: RunInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both would take seconds, and Comet would patch libraries and report the run."""
    monkeypatch.setenv("PYTHONVERBOSE", "1")
    tracker = OwnProcess("tensorboard")
    tracker.begin(run)
    tracker.end("FINISHED")
    imported = (run.folder / "tensorboard" / "output.log").read_text()
    assert "import 'tensorboardX'" in imported
    assert "import 'torch'" not in imported
    assert "import 'comet_ml'" not in imported


def test_an_error_of_the_tracker_is_reported(run: RunInfo) -> None:
    with pytest.raises(TrackerProcessError, match="ValueError: 'nothing' is not known"):
        OwnProcess("nothing").begin(run)


def test_a_killed_process_is_reported(run: RunInfo) -> None:
    before = set(psutil.Process().children())
    tracker = OwnProcess("tensorboard")
    tracker.begin(run)
    (process,) = set(psutil.Process().children()) - before
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)
    with pytest.raises(TrackerProcessError, match=r"its process ended; see .*/tensorboard/output\.log"):
        tracker.points([point(1, loss=1.0)])
