"""How many steps a training will make and how long a retraining will take, before it begins."""

import math
import statistics
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from training.launch import finished
from training.order import SampleOrder
from training.paths import Home, RunPaths
from training.plan import RunPlan
from training.records import DatasetVersion, Release, TrainedModel
from training.settings import Settings

# Parts of a run's wall time by what they grow with: rows at a known speed, rows, or nothing.
_LEARNING = ("data wait", "compute", "communication")
_BY_ROWS = ("validation", "checkpoint")
_LEFT_OUT = ("preparation", "lost to failures")


class Estimate(NamedTuple):
    """Seconds that a run will take, and where the number comes from; or none, and why it is not known."""

    seconds: float | None
    why: str


class Earlier(NamedTuple):
    """A run of the same recipe that trained to the end and was registered."""

    release: Release
    trained: TrainedModel


def steps_per_epoch(rows: int, settings: Settings) -> int:
    """Optimizer steps of one pass over `rows` rows to learn from, as the feed `data.feed` makes them.

    0 when a feed that takes whole batches only gets none, which training refuses.
    """
    world_size = max(1, settings.scaling.num_workers)
    if settings.data.feed == "stream":  # each worker: whole batches of its share
        return rows // world_size // settings.local_batch_size
    if settings.data.feed == "loader":  # each worker: all of its share, which is filled up to be equal
        return math.ceil(math.ceil(rows / world_size) / settings.local_batch_size)
    return SampleOrder(rows, settings.training.global_batch_size, settings.seed).steps_per_epoch


def total_steps(rows: int, settings: Settings) -> int:
    """Optimizer steps of a whole training on `rows` rows."""
    steps = steps_per_epoch(rows, settings) * settings.training.epochs
    return min(steps, settings.training.max_steps or steps)


def estimate(plan: RunPlan, version: DatasetVersion | None, steps: int | None) -> Estimate:
    """Seconds of the run, from the newest finished run of the recipe, if possible on as many workers.

    `version` is the dataset version and `steps` its training's length, none when the data are not prepared yet: then
    as many rows are taken as the earlier run had.
    """
    runs = list(_earlier(plan))
    if not runs:
        return Estimate(None, f"no run of {plan.recipe.name} has finished here yet")
    world_size = max(1, plan.settings.scaling.num_workers)
    last = next((run for run in runs if run.trained.world_size == world_size), runs[0])
    why = f"from run {last.release.run_key[:16]}"
    if steps is None:
        steps = total_steps(_rows_to_learn(last, plan.settings), plan.settings)
        why += ", if there are as many rows"
    preparation = max(run.release.goodput.parts.get("preparation", 0.0) for run in runs)
    rows = _steps_to_go(plan, steps) * plan.settings.training.global_batch_size
    return Estimate(_seconds(last, plan.settings, rows) + (0.0 if version else preparation), why)


def _seconds(last: Earlier, settings: Settings, rows: int) -> float:
    """Seconds without preparation to learn from `rows` rows, counted once for each time they are used."""
    parts = last.release.goodput.parts
    speed = statistics.median(epoch.images_per_s for epoch in last.trained.history)
    share = rows / max(1, last.release.epochs * _rows_to_learn(last, settings))
    fixed = sum(seconds for name, seconds in parts.items() if name not in _LEARNING + _BY_ROWS + _LEFT_OUT)
    return fixed + rows / speed + share * sum(parts.get(name, 0.0) for name in _BY_ROWS)


def _rows_to_learn(last: Earlier, settings: Settings) -> int:
    """Training rows of the earlier run without those kept back for validation."""
    rows = min(last.release.train_rows, settings.data.max_train_rows or last.release.train_rows)
    return max(1, round(rows * (1 - settings.data.validation_share)))


def _steps_to_go(plan: RunPlan, steps: int) -> int:
    """Steps that are not in a finished training or in a checkpoint yet."""
    if finished(plan.paths, plan.run_key) is not None:
        return 0
    done = [int(path.name.removeprefix("step-")) for path in plan.paths.checkpoints.glob("step-*")]
    return max(0, steps - max(done, default=0))


def _earlier(plan: RunPlan) -> Iterator[Earlier]:
    """Finished runs of the recipe, newest first; one that found its training done says nothing of its time."""
    files = Home(Path(plan.home)).runs(plan.recipe.name).glob("*/release.json")
    for file in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True):
        with suppress(ValueError):  # written by another version of Evergreen, in another form
            release = Release.model_validate_json(file.read_text(encoding="utf-8"))
            trained = finished(RunPaths(file.parent), release.run_key)
            if trained is not None and trained.history and "compute" in release.goodput.parts:
                yield Earlier(release, trained)
