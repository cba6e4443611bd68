"""Trainings on real Ray workers that are slow enough to be hit at a chosen step, and how to hit them."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from small_runs import job_for, tiny_settings

from training.attempts.heartbeat import Beat, read_beats
from training.attempts.job import TrainingJob
from training.records import DatasetVersion
from training.storage.paths import Home, RunPaths

_RECIPE = """
import os
import time
from training.recipe import Recipe
from training.data.sources.digits import Digits

def build_model(shape, classes):
    from torch import nn

    class Slow(nn.Sequential):
        def forward(self, images):
            if self.training:
                time.sleep(float(os.environ.get("EVERGREEN_TEST_STEP_S", "0.03")))
            return super().forward(images)

    return Slow(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))

recipe = Recipe("slow", "a step takes 30 ms at least", Digits(), build_model)
"""


def write_slow_recipe(folder: Path) -> str:
    """A recipe file of digits and a linear model, 30 ms or more a step; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "slow.py"
    file.write_text(_RECIPE)
    return str(file)


def slow_job(home: Home, version: DatasetVersion, workers: int = 3, **sections: Any) -> TrainingJob:
    """A training of about 100 steps on `workers`, with a checkpoint every 4 steps.

    With three workers, unlike two, the order of a sum over ranks shows in its last bits.
    """
    recipe = write_slow_recipe(home.root)
    settings = tiny_settings(
        training={"epochs": 15, "global_batch_size": 48} | sections.pop("training", {}),
        scaling={"num_workers": workers, "cpus_per_worker": 0.5} | sections.pop("scaling", {}),
        ray={"num_cpus": 4} | sections.pop("ray", {}),
        checkpoint={"every_steps": 4} | sections.pop("checkpoint", {}),
        tracking={"log_every_steps": 2},
        **sections,
    )
    return job_for(home, version, settings, recipe)


def when_at_step(paths: RunPaths, step: int, act: Callable[[list[Beat]], None]) -> threading.Thread:
    """Call `act` with the workers' signs of life, from a thread, once a metric point of `step` or later is there.

    And once each worker has shown that it goes on after its first step, which the watchdog allows more time.
    """

    def work() -> None:
        deadline = time.monotonic() + 400  # two starts of workers on a busy machine
        while time.monotonic() < deadline:
            beats = read_beats(paths)
            if beats and last_step(paths.metrics) >= step and all(beat.step > 1 for beat in beats):
                act(beats)
                return
            time.sleep(0.02)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def send(rank: int, signum: int) -> Callable[[list[Beat]], None]:
    """Sends a signal to the worker of that rank."""

    def act(beats: list[Beat]) -> None:
        os.kill(next(beat.pid for beat in beats if beat.rank == rank), signum)

    return act


def last_step(metrics: Path) -> int:
    from training.attempts.metrics import MetricsFile

    points = MetricsFile(metrics).read()
    return points[-1].step if points else 0
