"""Two drivers train one run, as on a file system without locks: the newer continues, the older ends."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from slow_runs import last_step, slow_job

from training.attempts.fence import Fence, RivalDriverError, new_driver
from training.attempts.history import read_attempts, read_failures
from training.attempts.job import TrainingJob
from training.errors import TransientError
from training.records import DatasetVersion
from training.storage.paths import Home, RunPaths
from training.supervision import supervise
from training.supervision.launch import launch

_HERE = Path(__file__).parents[1]
_LIMIT_S = 300.0


def started(home: Home, version: Path, step_s: str) -> "subprocess.Popen[str]":
    """Start a driver in this process's environment, whose steps take at least `step_s` seconds."""
    path = os.pathsep.join(map(str, (_HERE.parents[1], _HERE.parent, _HERE)))
    return subprocess.Popen(
        [sys.executable, str(_HERE / "rival_driver.py"), str(home.root), str(version)],
        env=os.environ | {"PYTHONPATH": path, "EVERGREEN_TEST_STEP_S": step_s},
        stdout=subprocess.PIPE,
        text=True,
    )


def run_at_step(home: Home, step: int) -> RunPaths:
    """Wait until the recipe's only run has reached `step`, and return its paths."""
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline:
        for folder in home.runs("slow").glob("*"):
            if last_step(RunPaths(folder).metrics) >= step:
                return RunPaths(folder)
        time.sleep(0.05)
    raise AssertionError(f"no run came to step {step}")


@pytest.mark.slow
def test_the_older_of_two_drivers_ends_at_once_and_the_newer_one_finishes(
    home: Home, small_version: DatasetVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = tmp_path / "version.json"
    version.write_text(small_version.model_dump_json())
    older = started(home, version, "1.0")  # it is ended early
    paths = run_at_step(home, 4)
    newer = started(home, version, "0.0")
    said, _ = older.communicate(timeout=_LIMIT_S)
    digest, _ = newer.communicate(timeout=_LIMIT_S)
    assert said.startswith("RivalDriverError: Another process (")
    assert "Wait for the other process to end" in said
    assert f"/{newer.pid}/" in said
    assert [attempt.number for attempt in read_attempts(paths)] == [1, 2]
    assert [failure.number for failure in read_failures(paths)] == [1]
    monkeypatch.setenv("EVERGREEN_TEST_STEP_S", "0.0")
    calm = slow_job(Home(tmp_path / "calm"), small_version, workers=0)
    assert launch(calm).weights_digest == digest.strip()


@pytest.mark.usefixtures("ray_session")
@pytest.mark.slow
def test_a_driver_with_workers_ends_them_and_itself(home: Home, small_version: DatasetVersion) -> None:
    job = slow_job(home, small_version, workers=1, training={"epochs": 1000})

    def take_over() -> None:
        run_at_step(home, 2)
        Fence.begin(job.paths, new_driver())

    rival = threading.Thread(target=take_over, daemon=True)
    rival.start()
    with pytest.raises(RivalDriverError, match="attempt 2 belongs to that process"):
        launch(job)
    rival.join()
    assert [failure.number for failure in read_failures(job.paths)] == [1]
    assert job.paths.fence.read_text().startswith("2.0 ")


def test_a_driver_that_begins_while_another_waits_for_its_next_attempt_keeps_the_run(
    home: Home, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = slow_job(home, small_version, workers=0)
    job.paths.root.mkdir(parents=True)
    tried: list[int] = []

    def attempt(job: TrainingJob) -> None:
        tried.append(job.attempt)
        raise TransientError("a worker was lost")

    def pause_s(job: TrainingJob, futile: int) -> float:
        Fence.begin(job.paths, new_driver())
        return 0.0

    monkeypatch.setattr(supervise, "_pause_s", pause_s)
    with pytest.raises(RivalDriverError, match="attempt 2 belongs to that process"):
        supervise.train_until_done(job, attempt, on_ray=False)
    assert tried == [1]
    assert job.paths.fence.read_text().startswith("2.0 ")


def test_two_drivers_that_begin_at_the_same_moment_do_not_share_an_attempt(home: Home) -> None:
    paths = RunPaths(home.root / "run")
    paths.root.mkdir(parents=True)
    first, second = Fence.begin(paths, "first"), Fence(paths.fence, 1, driver="second")._written()
    assert first.number == second.number
    second.check_driver()
    with pytest.raises(RivalDriverError):
        first.check_driver()


def test_a_fence_of_an_earlier_version_is_read(home: Home) -> None:
    paths = RunPaths(home.root / "run")
    paths.root.mkdir(parents=True)
    paths.fence.write_text("3.1")
    Fence(paths.fence, 3, 1).check()
    assert Fence.begin(paths, "a/1/b").number == 4
