"""The runs of a recipe in a home, as garbage collection sees them."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tasks.registry.removal import is_in_service, is_kept_as_rolled_back, is_running
from tasks.trackers.embedded_store import store_file
from tasks.trackers.mlflow_run import connect_once
from training.errors import EvergreenError, classify
from training.plan import RunPlan
from training.records import Release
from training.storage.paths import Home, RunPaths, newest_first
from training.storage.record_files import DamagedError, read_record

log = logging.getLogger("evergreen.retention")


@dataclass(frozen=True)
class RecipeRun:
    """A run; `changed` is the time of its last change, in seconds since 1970. Without `release`, it is not finished."""

    paths: RunPaths
    plan: RunPlan
    release: Release | None
    changed: float


class RunsOfRecipe(NamedTuple):
    """The runs of a recipe, most recently changed first, and those with a damaged record, of which nothing is removed.

    `damaged` has the fingerprint of each damaged run's dataset, by the name of the run's folder; None when the plan is
    damaged.
    """

    runs: list[RecipeRun]
    damaged: dict[str, str | None]


def runs_of(home: Home, recipe: str) -> RunsOfRecipe:
    """Read the runs of a recipe. A folder without a plan is not listed, so is kept."""
    recipe_runs = RunsOfRecipe([], {})
    for file in newest_first(home.runs(recipe), "ingredients.json"):
        paths, plan = RunPaths(file.parent), None
        try:
            plan = read_record(file, RunPlan, paths.root.name)
            release = _release(paths)
        except DamagedError as error:
            recipe_runs.damaged[paths.root.name] = None if plan is None else plan.fingerprint
            dataset = f" Also, no dataset of recipe {recipe} is removed." if plan is None else ""
            log.warning("%s Nothing of the run is removed.%s", error, dataset)
            continue
        except FileNotFoundError:  # another process removes the run meanwhile
            continue
        if Path(plan.home) != home.root:  # the home was moved, and the plan's paths depend on its location
            plan = plan.model_copy(update={"home": str(home.root)})
        recipe_runs.runs.append(RecipeRun(paths, plan, release, _last_change(paths, release)))
    recipe_runs.runs.sort(key=lambda run: run.changed, reverse=True)
    return recipe_runs


def plans_of(home: Home, recipe: str) -> Iterator[RunPlan]:
    """The plans of the recipe's runs, without those that can't be read, which :func:`runs_of` reports."""
    for file in home.runs(recipe).glob("*/ingredients.json"):
        with suppress(DamagedError, OSError):
            yield read_record(file, RunPlan, file.parent.name)


def _release(paths: RunPaths) -> Release | None:
    return read_record(paths.release, Release, paths.root.name) if paths.release.is_file() else None


def _last_change(paths: RunPaths, release: Release | None) -> float:
    places = [paths.ingredients, paths.release, paths.metrics, paths.attempts]
    if release is None:  # its workers may live on another machine
        places += paths.beats.glob("*")
    return max(map(_changed, places))


def _changed(file: Path) -> float:
    """When a file was changed; 0 without the file, such as a heartbeat's, which its worker replaces meanwhile."""
    with suppress(FileNotFoundError):
        return file.stat().st_mtime
    return 0.0


def in_service(run: RecipeRun, unreadable: set[str]) -> bool:
    """Whether a version of the run has an alias or is an anchor, in any registered model, or the MLflow run is running.

    A run whose record of its release is missing may have such a version: a process was killed after the promotion.
    True when the registry can't be read. The address of a registry that does not answer is added to `unreadable`, and
    is not asked again: each request costs minutes.
    """
    from mlflow.exceptions import MlflowException

    registry = str(run.plan.settings.tracking.uri or "")
    if registry in unreadable:
        return True
    if not has_store(run):
        return False
    try:
        client = connect_once(run.plan)
        serves = is_in_service(client, run.plan.run_key, run.release)
        return serves or (run.release is not None and is_running(client, run.release))
    except (EvergreenError, MlflowException) as error:
        known = classify(error)
        if known is not None and known.transient:
            unreadable.add(registry)
        others = " with all others of the registry" if registry in unreadable else ""
        log.warning("%s: kept%s, because its registry can't be read (%s)", run.paths.root, others, error)
        return True


def keeps_version(run: RecipeRun) -> bool:
    """Whether the released version of a run that is removed stays in the registry, because it was rolled back."""
    if run.release is None or not has_store(run):
        return False
    return is_kept_as_rolled_back(connect_once(run.plan), Home(Path(run.plan.home)), run.release)


def has_store(run: RecipeRun) -> bool:
    """Whether the run's MLflow store exists: connecting to a missing embedded store would create it."""
    return run.plan.settings.tracking.uri is not None or store_file(Home(Path(run.plan.home))).is_file()
