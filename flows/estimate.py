"""Estimates, before a retraining begins, how many steps it will train and how long it will take."""

import math
import statistics
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from training.checkpoints.opening import stored_run_of
from training.data.manifest import read_manifest
from training.errors import DataError, EvergreenError
from training.plan import RunPlan
from training.records import DatasetVersion, Release, TrainedModel
from training.settings.schema import Settings
from training.storage.paths import Home, RunPaths, newest_first
from training.storage.record_files import find_record
from training.supervision.launch import finished
from training.trainers.base import trainer_named

# Parts of a run's wall time: computed from the measured rows per second, scaled with the number of rows, and left out
# of the estimate. All other parts count as constant.
_LEARNING = ("data wait", "compute", "communication")
_BY_ROWS = ("validation", "checkpoint")
_LEFT_OUT = ("preparation", "lost to failures")


class Estimate(NamedTuple):
    """Seconds that a run will take, and the source of this number; or None, and the reason why it is not known."""

    seconds: float | None
    why: str


class Earlier(NamedTuple):
    """A run of the same recipe that trained to the end and was registered."""

    release: Release
    trained: TrainedModel
    plan: RunPlan


def steps_per_epoch(rows: int, settings: Settings) -> int:
    """Steps of one epoch with `rows` rows to learn from; see :class:`training.trainers.base.Trainer`."""
    world_size = max(1, settings.scaling.num_workers)
    return trainer_named(settings.trainer).steps_per_epoch(settings, rows, world_size)


def total_steps(rows: int, settings: Settings) -> int:
    """Optimizer steps of a whole training with `rows` rows to learn from."""
    steps = steps_per_epoch(rows, settings) * settings.epochs
    return min(steps, settings.max_steps or steps)


def estimate(plan: RunPlan, version: DatasetVersion | None, steps: int | None) -> Estimate:
    """Seconds of the run, estimated from the most similar finished run of the recipe (if several, from the newest).

    Similarity means, in order of importance: the same number of workers, the same image size, the same recipe file.
    The speed of a run with images of another size is scaled by the number of pixels.

    `version` is the dataset version, and `steps` the number of steps of its training. Both are None when the data are
    not prepared yet; then the estimate assumes as many rows as in the earlier run.
    """
    runs = list(_earlier(plan))
    if not runs:
        return Estimate(None, f"no run of {plan.recipe.name} has finished here yet")
    world_size = max(1, plan.settings.scaling.num_workers)
    last = max(runs, key=lambda run: _likeness(run, plan, world_size))
    why = f"from run {last.release.run_key[:16]}"
    pixel_ratio = _pixels(plan) / _pixels(last.plan) if _pixels(plan) and _pixels(last.plan) else 1.0
    if pixel_ratio != 1:
        why += f" with images of {1 / pixel_ratio:.2g} times as many pixels"
    if steps is None:
        steps = total_steps(_rows_to_learn(last, plan.settings), plan.settings)
        why += ", if there are as many rows"
    if plan.settings.training.patience is not None:
        why += f", for all {plan.settings.epochs} {plan.settings.training.WORDS.epoch}s"
    preparation = max(run.release.goodput.parts.get("preparation", 0.0) for run in runs)
    trainer, learned = trainer_named(plan.settings.trainer), _rows_to_learn(last, plan.settings)
    rows_per_step = trainer.rows_per_step(plan.settings, learned)
    rows = _steps_to_go(plan, steps) * rows_per_step
    seconds = _seconds(last, plan.settings, rows, pixel_ratio)
    return Estimate(seconds + (0.0 if version else preparation), why)


def _likeness(run: Earlier, plan: RunPlan, world_size: int) -> tuple[bool, bool, bool]:
    return (
        run.trained.world_size == world_size,
        _pixels(run.plan) == _pixels(plan),
        run.plan.recipe.digest == plan.recipe.digest,
    )


def _pixels(plan: RunPlan) -> int:
    """Pixels of an image, or 0 when neither the settings nor a prepared dataset define the image size."""
    if plan.settings.data.image_size is not None:
        return plan.settings.data.image_size**2
    try:
        folder = Home(Path(plan.home)).dataset(plan.recipe.name, plan.fingerprint)
        return math.prod(read_manifest(folder, plan.fingerprint).shape[1:])
    except DataError:
        return 0


def _seconds(last: Earlier, settings: Settings, rows: int, pixel_ratio: float) -> float:
    """Seconds of the run, without preparation; `rows` counts the rows of all steps that are left.

    An image has `pixel_ratio` times as many pixels as an image of the earlier run.
    """
    parts = last.release.goodput.parts
    speed = statistics.median(epoch.images_per_s for epoch in last.trained.history)
    share = rows / max(1, last.release.epochs * _rows_to_learn(last, settings))
    fixed = sum(seconds for name, seconds in parts.items() if name not in _LEARNING + _BY_ROWS + _LEFT_OUT)
    return fixed + pixel_ratio * rows / speed + share * sum(parts.get(name, 0.0) for name in _BY_ROWS)


def _rows_to_learn(last: Earlier, settings: Settings) -> int:
    """Training rows of the earlier run, without validation rows; at most `data.max_train_rows`."""
    learned = max(epoch.rows for epoch in last.trained.history)
    return max(1, min(learned, settings.data.max_train_rows or learned))


def _steps_to_go(plan: RunPlan, steps: int) -> int:
    """Number of steps that neither a finished training nor a checkpoint contains yet."""
    if finished(plan.paths, plan.run_key) is not None:
        return 0
    return max(0, steps - saved_step(plan))


def saved_step(plan: RunPlan) -> int:
    """The step of the newest checkpoint of an unfinished training, 0 without one.

    With `storage.url`, the checkpoints are in the store; while the store does not answer, 0.
    """
    if plan.settings.storage.url is not None:
        with suppress(EvergreenError):
            stored = stored_run_of(plan.settings.storage.url, plan.recipe.name, plan.paths.root.name)
            return max((checkpoint.step for checkpoint in stored.state().checkpoints), default=0)
        return 0
    saved = [int(path.name.removeprefix("step-")) for path in plan.paths.checkpoints.glob("step-*")]
    return max(saved, default=0)


def _earlier(plan: RunPlan) -> Iterator[Earlier]:
    """Finished runs of the recipe, newest first.

    Runs without a measured training time, because they reused a finished training, are left out.
    """
    for file in newest_first(Home(Path(plan.home)).runs(plan.recipe.name), "release.json"):
        release = find_record(file, Release, file.parent.name)
        paths = RunPaths(file.parent)
        trained = finished(paths, release.run_key) if release is not None else None
        kept = find_record(paths.ingredients, RunPlan, paths.root.name)
        if release and kept and trained and trained.history and "compute" in release.goodput.parts:
            yield Earlier(release, trained, kept)
