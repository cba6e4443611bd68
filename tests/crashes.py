"""Trainings that crash at a chosen step, and the part of their outcome that no crash may change."""

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from small_runs import tiny_settings

from training.attempts.job import TrainingJob
from training.attempts.metrics import MetricsFile
from training.data.dataset import open_columns
from training.records import DatasetVersion, TrainedModel
from training.settings.schema import Settings
from training.supervision.launch import finished, launch
from training.trainers.network.feeds import Batch
from training.trainers.rows import training_rows
from training.trainers.torch.replica import Replica
from training.trainers.torch.virtual_shards import ShardedReplica

BATCH = 40
SAVE_EACH_STEP = {"checkpoint": {"every_steps": 1}, "tracking": {"log_every_steps": 1}}
SLOW = {"checkpoint": {"every_steps": 2}, "tracking": {"log_every_steps": 2}}


class Crash(BaseException):
    """Ends a training at once; a BaseException that no code of Evergreen catches by name."""


def settings(**sections: Any) -> Settings:
    training = {"global_batch_size": BATCH} | sections.pop("training", {})
    return tiny_settings(training=training, **sections)


def finish_writes() -> None:
    """Wait for asynchronous checkpoint writes, so that every crash finds the same checkpoints on disk."""
    for thread in threading.enumerate():
        if thread.name.endswith("(_write)"):
            thread.join()


def crash_at(monkeypatch: pytest.MonkeyPatch, crash_step: int) -> None:
    """Make training crash before optimizer step `crash_step`."""
    for kind in (Replica, ShardedReplica):
        step_of = kind.step

        def step_or_crash(
            self: Replica, batch: Batch, epoch: int, step: int, step_of: Callable[..., Any] = step_of
        ) -> Any:
            finish_writes()
            if step == crash_step:
                raise Crash
            return step_of(self, batch, epoch, step)

        monkeypatch.setattr(kind, "step", step_or_crash)


def crashed(job: TrainingJob, crash_step: int) -> None:
    """Train until the crash, and check that it leaves no model."""
    with pytest.MonkeyPatch.context() as patch:
        crash_at(patch, crash_step)
        with pytest.raises(Crash):
            launch(job)
    assert finished(job.paths, job.run_key) is None
    assert not job.paths.model.exists()


def points(job: TrainingJob) -> list[tuple[int, int, dict[str, float]]]:
    """Metric points (step, epoch, values) without speeds, which depend on the clock."""
    return [
        (
            point.step,
            point.epoch,
            {name: value for name, value in point.values.items() if not name.startswith("speed/")},
        )
        for point in MetricsFile(job.paths.metrics).read()
    ]


def history(trained: TrainedModel) -> list[dict[str, Any]]:
    return [row.model_dump(exclude={"images_per_s"}) for row in trained.history]


def outcome(job: TrainingJob, trained: TrainedModel) -> tuple[Any, ...]:
    """Return everything that must not depend on when a training was interrupted."""
    return trained.weights_digest, trained.selected_epoch, trained.steps, history(trained), points(job)


def started_at(caplog: pytest.LogCaptureFixture) -> list[int]:
    """The first step of each attempt, from the log."""
    steps = re.findall(r"training starts at step (\d+) of", caplog.text)
    return [int(step) for step in steps]


def per_epoch(version: DatasetVersion) -> int:
    """Number of optimizer steps in an epoch."""
    learn, _ = training_rows(open_columns(version, "train"), settings())
    return len(learn) // BATCH + (len(learn) % BATCH >= BATCH // 8)
