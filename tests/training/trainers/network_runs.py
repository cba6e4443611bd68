"""Small trainings of networks by recipes of their own, for the tests of several trainers."""

import signal
import threading
from typing import Any

import numpy as np
import pytest
from boosted_tables import outcome
from crashes import finish_writes
from slow_runs import send, when_at_step
from small_runs import job_for
from trainer_contract import Crash

from training.attempts.heartbeat import Heartbeat
from training.attempts.history import read_attempts, read_failures
from training.attempts.job import TrainingJob
from training.checkpoints.weights import save_weights, weights_digest
from training.recipe import load
from training.records import DatasetVersion, TrainedModel
from training.settings.overrides import resolve
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.network.accumulators import Interval


def small_job(
    home: Home, version: DatasetVersion, recipe: str, workers: int = 0, **overrides: Any
) -> TrainingJob:
    """A training of the recipe in the file `recipe`; `overrides` are sections: `training={...}`."""
    base = {
        "scaling": {"num_workers": workers, "use_gpu": "no"} | ({"cpus_per_worker": 0.5} if workers else {}),
        "tracking": {"system_metrics": False},
        "training": {"global_batch_size": 40},
        "checkpoint": {"every_steps": 2},
    }
    return job_for(home, version, resolve(load(recipe)[0].settings, base, overrides), recipe=recipe)


def check_a_killed_worker_changes_no_bit(
    recipe: str, version: DatasetVersion, home: Home, calm: Home, score: float
) -> TrainedModel:
    """Train on two Ray workers, kill one, and compare with an undisturbed training in `calm`; returns the model.

    `score` is the least score on the validation rows.
    """

    def job(where: Home) -> TrainingJob:
        return small_job(
            where,
            version,
            recipe,
            workers=2,
            training={"global_batch_size": 16, "epochs": 4},
            checkpoint={"every_steps": 10},
        )

    hit, undisturbed = job(home), job(calm)
    killing = when_at_step(hit.paths, 120, send(1, signal.SIGKILL))
    trained = launch(hit)
    killing.join()
    first, second = read_attempts(hit.paths)
    assert second.first_step >= 100
    assert first.world_size == second.world_size == 2
    assert len(read_failures(hit.paths)) == 1
    assert trained.history[-1].validation_score > score
    assert outcome(hit, trained) == outcome(undisturbed, launch(undisturbed))
    return trained


def crash_at(step: float, job: TrainingJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train until `step`, and crash there, when the checkpoints of the steps before are written."""
    beat = Heartbeat.beat

    def crash(heartbeat: Heartbeat, at: int) -> None:
        beat(heartbeat, at)
        if at >= step and not threading.current_thread().name.endswith("(_write)"):
            finish_writes()
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Heartbeat, "beat", crash)
        with pytest.raises(Crash):
            launch(job)


def rows_of_steps(job: TrainingJob, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Train, and return the row numbers of each step."""
    steps: list[list[int]] = []
    add = Interval.add

    def recorded(interval: Interval, losses: Any, scores: Any, rows: np.ndarray) -> None:
        steps.append(rows.tolist())
        add(interval, losses, scores, rows)

    with monkeypatch.context() as patch:
        patch.setattr(Interval, "add", recorded)
        launch(job)
    return steps


def starting_from(job: TrainingJob, weights: dict[str, Any]) -> TrainingJob:
    """The training `job` from given weights, whose copy is written to the run's folder."""
    job.paths.initial.mkdir(parents=True)
    save_weights(weights, job.paths.initial_weights)
    return job.model_copy(update={"initial": weights_digest(weights)})
