"""The runs of a recipe in a home, as garbage collection sees them."""

import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tasks.registry.removal import is_in_service, is_running
from tasks.trackers.embedded_store import store_file
from tasks.trackers.mlflow_run import connect_once
from training.errors import EvergreenError, classify
from training.plan import RunPlan
from training.records import Release
from training.storage.paths import Home, RunPaths
from training.storage.record_files import DamagedError, read_record

log = logging.getLogger("evergreen.retention")


@dataclass(frozen=True)
class RecipeRun:
    """A run; `changed` is the time of its last change, in seconds since 1970. Without `release`, it is not finished."""

    paths: RunPaths
    plan: RunPlan
    release: Release | None
    changed: float


def runs_of(home: Home, recipe: str) -> list[RecipeRun]:
    """Runs of a recipe, most recently changed first. A folder without a readable plan is not listed, so is kept."""
    found = []
    for file in home.runs(recipe).glob("*/ingredients.json"):
        paths = RunPaths(file.parent)
        try:
            plan = read_record(file, RunPlan, paths.root.name)
            finished = paths.release.is_file()
            release = read_record(paths.release, Release, paths.root.name) if finished else None
        except DamagedError as error:
            log.warning("%s Nothing of the run is removed.", error)
            continue
        if Path(plan.home) != home.root:  # the home was moved, and the plan's paths depend on its location
            plan = plan.model_copy(update={"home": str(home.root)})
        places = [file, paths.release, paths.metrics, paths.attempts]
        if not finished:  # its workers may live on another machine
            places += paths.beats.glob("*")
        changed = max(map(_changed, places))
        found.append(RecipeRun(paths, plan, release, changed))
    return sorted(found, key=lambda run: run.changed, reverse=True)


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


def has_store(run: RecipeRun) -> bool:
    """Whether the run's MLflow store exists: connecting to a missing embedded store would create it."""
    return run.plan.settings.tracking.uri is not None or store_file(Home(Path(run.plan.home))).is_file()
