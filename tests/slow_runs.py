"""Slow trainings on real Ray workers, so that tests can inject a fault at a chosen step, and the injectors."""

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

recipe = Recipe("slow", "a step takes 30 ms at least", Digits(), build_model=build_model)
"""


def write_slow_recipe(folder: Path) -> str:
    """Write a recipe of the digits and a linear model whose steps take 30 ms or more; returns the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "slow.py"
    file.write_text(_RECIPE)
    return str(file)


def slow_job(home: Home, version: DatasetVersion, workers: int = 3, **sections: Any) -> TrainingJob:
    """Describe a training on `workers` workers with 15 epochs of digits and a checkpoint every 4 steps.

    The default is three workers: with two, the order of a sum over ranks does not change its last bits; with three
    it does.
    """
    recipe = write_slow_recipe(home.root)
    settings = tiny_settings(
        training={"epochs": 15, "global_batch_size": 48} | sections.pop("training", {}),
        scaling={"num_workers": workers, "cpus_per_worker": 0.5} | sections.pop("scaling", {}),
        ray={"num_cpus": 4} | sections.pop("ray", {}),
        checkpoint={"every_steps": 4} | sections.pop("checkpoint", {}),
        tracking={"log_every_steps": 2} | sections.pop("tracking", {}),
        **sections,
    )
    return job_for(home, version, settings, recipe)


def when_at_step(
    paths: RunPaths, step: int, act: Callable[[list[Beat]], None], past_first_step: bool = True
) -> threading.Thread:
    """Call `act` with the workers' heartbeats, from a thread, as soon as training has reached `step`.

    Reached means: there is a metric point of `step` or later, and, with `past_first_step`, each worker's heartbeat is
    past the first step, for which the watchdog allows more time. Heartbeats come once a second, in which fast steps may
    end the training.
    """

    def work() -> None:
        deadline = time.monotonic() + 400  # enough for two worker starts on a busy machine
        while time.monotonic() < deadline:
            beats = read_beats(paths)
            late = all(beat.step > 1 for beat in beats) or not past_first_step
            if beats and last_step(paths.metrics) >= step and late:
                act(beats)
                return
            time.sleep(0.02)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def send(rank: int, signum: int) -> Callable[[list[Beat]], None]:
    """Return an action for :func:`when_at_step` that sends signal `signum` to the worker of that rank."""

    def act(beats: list[Beat]) -> None:
        os.kill(next(beat.pid for beat in beats if beat.rank == rank), signum)

    return act


def last_step(metrics: Path) -> int:
    from training.attempts.metrics import MetricsFile

    points = MetricsFile(metrics).read()
    return points[-1].step if points else 0
