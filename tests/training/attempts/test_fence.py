"""An attempt that a newer attempt has replaced commits nothing: no checkpoint, no model, no removal of points."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crashes import crashed, points, settings
from small_runs import job_for

from training.attempts.fence import Fence, SupersededError
from training.attempts.job import TrainingJob
from training.attempts.metrics import MetricsFile
from training.attempts.mirror import CLOSED
from training.checkpoints.checkpoint_log import CheckpointLog
from training.records import DatasetVersion
from training.storage import files
from training.storage.paths import Home
from training.supervision.launch import finished, launch
from training.trainers import requests
from training.trainers.network import progress


@pytest.fixture
def job(home: Home, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch) -> TrainingJob:
    """A training that checks the fence only when it commits: no checks between steps, points only at epoch ends."""
    monkeypatch.setattr(requests, "_LOOK_S", 1000.0)
    sections = {"checkpoint": {"every_steps": 1}, "tracking": {"log_every_steps": 1000}}
    return job_for(home, small_version, settings(failure={"max_failures": 0}, **sections))


def replaced_before(
    patch: pytest.MonkeyPatch, job: TrainingJob, owner: Any, name: str, time: int = 1
) -> None:
    """Begin a newer attempt just before call number `time` of `owner.name`."""
    original: Callable[..., Any] = getattr(owner, name)
    calls = [0]

    def late(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == time:
            if isinstance(args[0], CheckpointLog):
                args[0].wait()  # the checkpoint before is committed
            Fence.begin(job.paths)
        return original(*args, **options)

    patch.setattr(owner, name, late)


def steps(job: TrainingJob) -> set[str]:
    return {path.name for path in job.paths.checkpoints.iterdir()}


def test_no_checkpoint(job: TrainingJob, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced_before(monkeypatch, job, CheckpointLog, "save", time=3)
    with pytest.raises(SupersededError):
        launch(job)
    assert steps(job) == {"step-000000001", "step-000000002"}


def test_no_model(job: TrainingJob, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced_before(monkeypatch, job, progress, "save_weights")
    with pytest.raises(SupersededError):
        launch(job)
    assert finished(job.paths, job.run_key) is None
    assert [path for path in job.paths.root.iterdir() if "model" in path.name] == []


def test_a_model_that_took_its_time_is_refused(job: TrainingJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newer attempt begins while the model's files are synced, before the rename that commits the model."""
    original = files.sync_folder

    def sync(folder: Path) -> None:
        original(folder)
        if folder.name.startswith(".model."):
            Fence.begin(job.paths)

    monkeypatch.setattr(files, "sync_folder", sync)
    with pytest.raises(SupersededError):
        launch(job)
    assert not job.paths.model.exists()


def test_other_ranks_write_no_outcome_for_a_newer_attempt(job: TrainingJob) -> None:
    """Ranks other than the first do not know the group of workers that Ray started last."""
    first = Fence.begin(job.paths, "driver")
    Fence.enter(job.paths, first.number, "driver")
    first.check_attempt()
    Fence.begin(job.paths, "driver")
    with pytest.raises(SupersededError, match=r"attempt 1 of the run in .* was superseded by attempt 2"):
        first.check_attempt()


def test_a_worker_that_lost_the_driver_is_not_called_superseded(job: TrainingJob) -> None:
    first = Fence.begin(job.paths, "driver")
    job.paths.fence.write_text(CLOSED)
    for check, attempt in ((first.check, r"1\.0"), (first.check_attempt, "1")):
        with pytest.raises(
            SupersededError, match=rf"attempt {attempt} of the run in .* writes nothing more: .*driver"
        ):
            check()


def test_no_point_is_taken_back(
    home: Home, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = {"checkpoint": {"every_steps": 3}, "tracking": {"log_every_steps": 1}}
    job = job_for(home, small_version, settings(failure={"max_failures": 0}, **sections))
    crashed(job, 5)
    before = points(job)
    assert [step for step, _, _ in before] == [1, 2, 3, 4, 5]  # a rewind to checkpoint 3 would remove two
    replaced_before(monkeypatch, job, MetricsFile, "rewind")
    with pytest.raises(SupersededError):
        launch(job)
    assert points(job) == before
    assert steps(job) == {"step-000000003"}


def test_a_commit_that_took_its_time_is_refused(job: TrainingJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newer attempt begins when the state is already on disk, before the rename that commits the checkpoint."""
    written: Callable[..., Any] = MetricsFile.sync

    def sync(self: MetricsFile) -> None:
        written(self)
        if any(job.paths.checkpoints.glob(".step-000000004.*/state.pt")):
            Fence.begin(job.paths)

    monkeypatch.setattr(MetricsFile, "sync", sync)
    with pytest.raises(SupersededError):
        launch(job)
    assert max(steps(job)) == "step-000000003"
    assert not Path(job.paths.model).exists()
