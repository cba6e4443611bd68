"""Garbage collection: remove what a home no longer needs, also in object stores, and leftovers of killed runs.

In: a home, and the number of finished runs to keep for each recipe. Out: the list of removals, done or planned.
Also kept are runs with a version that has an alias or is an anchor in any registered model, unfinished runs changed in
the last 30 days, the datasets of kept runs, and searches of the last 30 days with a kept trial. Running the same
command again recreates a removed run or dataset.
Fails with SettingError when the number of runs to keep is below 1. A recipe with an active run is skipped.
"""

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import Field

from tasks.cleanup.abandoned_claims import abandoned_claims, remove_claim
from tasks.cleanup.abandoned_folders import abandoned_folders
from tasks.cleanup.old_searches import old_searches
from tasks.cleanup.stored_objects import ABANDONED_AFTER_S, unneeded_objects
from tasks.registry.removal import delete_version, is_in_service, is_running
from tasks.trackers.embedded_store import store_file
from tasks.trackers.mlflow_run import connect_once
from training.attempts.fence import Fence, new_driver
from training.data.manifest import MANIFEST
from training.errors import EvergreenError, SettingError, TransientError
from training.plan import RunPlan
from training.ray_cluster.node_caches import remove_unused, unused
from training.records import Record, Release
from training.storage.files import remove_folder, sweep
from training.storage.paths import Home, RunPaths
from training.storage.record_files import DamagedError, read_record
from training.storage.run_lock import check_no_run, run_lock

log = logging.getLogger("evergreen.retention")

Kind = Literal[
    "run",
    "search",
    "checkpoints",
    "dataset",
    "raw rows",
    "version",
    "lock",
    "Ray session",
    "temporary files",
    "cached dataset",
    "stored run",
    "stored uploads",
    "stored checkpoints",
    "stored dataset",
]


class Removal(Record):
    """Something to remove: a folder, objects in a store, or a version or lock in the registry (`bytes` is 0)."""

    recipe: str = Field(description="empty for a folder outside of the home")
    kind: Kind
    name: str = Field(
        description="path below the home, model and version, model and tag, URL in a store, or a whole path"
    )
    bytes: int
    why: str


class Collection(Record):
    """The removals of `collect`, done or planned; `left_alone` has the reason for each recipe that was skipped."""

    removals: tuple[Removal, ...]
    left_alone: dict[str, str]


@dataclass(frozen=True)
class _Run:
    paths: RunPaths
    plan: RunPlan
    release: Release | None
    changed: float


def collect(home: Home, keep: int, versions: bool = False, dry_run: bool = False) -> Collection:
    """Remove what `home` no longer needs, for every recipe; with `dry_run`, only list it and change no file.

    `versions` also deletes the registered versions and MLflow runs of removed runs; MLflow only marks them as deleted
    until `mlflow gc`. Raises :class:`SettingError` when `keep` is below 1.
    """
    if keep < 1:
        raise SettingError(f"keep: {keep} is not possible; at least 1 finished run must stay.")
    caches = _caches(home)
    removals: list[Removal] = []
    left_alone: dict[str, str] = {}
    recipes = {folder.name for place in (home.runs(""), home.searches("")) for folder in place.glob("*")}
    for recipe in sorted(recipes):
        try:
            with nullcontext() if dry_run else run_lock(home, recipe):
                if dry_run:
                    check_no_run(home, recipe)
                else:
                    _sweep(home, recipe)
                # Listed first: a removal must not change what is found later, or a dry run would say something else.
                removals += _execute(list(_removable(home, recipe, keep, versions)), dry_run)
        except TransientError as error:
            left_alone[recipe] = str(error)
    removals += _execute(_leftovers(caches), dry_run)
    return Collection(removals=tuple(removals), left_alone=left_alone)


def _sweep(home: Home, recipe: str) -> None:
    searches = home.searches(recipe)
    places = (home.runs(recipe), home.datasets / recipe, home.raw / recipe, searches)
    for place in (*places, *searches.glob("*")):
        sweep(place)


def _execute(work: "Iterable[_PlannedRemoval]", dry_run: bool) -> Iterator[Removal]:
    for removal, remove in work:
        if not dry_run:
            remove()
        yield removal


_PlannedRemoval = tuple[Removal, Callable[[], None]]


def _removable(home: Home, recipe: str, keep: int, versions: bool) -> Iterator[_PlannedRemoval]:
    runs = _runs(home, recipe)
    finished = [run for run in runs if run.release is not None]
    newest = finished[:keep]
    kept: list[_Run] = []
    yield from _claims(recipe, runs)
    for run in runs:
        if run.release is None:
            days = (time.time() - run.changed) / 86400
            if days * 86400 < ABANDONED_AFTER_S or _in_service(run):
                kept.append(run)
            else:
                yield _run_folder(recipe, run, f"not finished, no change for {days:.0f} days")
        elif run in newest or _in_service(run):
            kept.append(run)
            if run is not finished[0] and run.paths.checkpoints.is_dir():
                yield _folder(home, recipe, "checkpoints", run.paths.checkpoints, "the model is finished")
        else:
            if versions:
                yield from _version(recipe, run)
            yield _run_folder(recipe, run, f"finished, not in service, older than the newest {keep}")
    used = {run.plan.fingerprint[:16] for run in kept}
    removed = {run.paths.root for run in runs if run not in kept}
    for search in old_searches(home, recipe, removed):
        yield _folder(home, recipe, "search", search.folder, search.why)
    yield from _data(home, recipe, used)
    yield from _stored(recipe, runs, kept, used)


def _stored(recipe: str, runs: list[_Run], kept: list[_Run], used: set[str]) -> Iterator[_PlannedRemoval]:
    """Unneeded objects in the object stores that the runs' settings name."""
    known = {run.paths.root.name: run in kept for run in runs}
    urls = {run.plan.settings.storage.url for run in runs}
    for url in sorted(url for url in urls if url is not None):
        for found in unneeded_objects(url, recipe, known, used):
            removal = Removal(
                recipe=recipe,
                kind=found.what,
                name=f"{url}/{found.prefix}",
                bytes=sum(one.bytes for one in found.objects),
                why=found.why,
            )
            yield removal, found.delete


def _claims(recipe: str, runs: list[_Run]) -> Iterator[_PlannedRemoval]:
    """Lock claims of killed processes of this home; the first removal ends all such claims of its model."""
    for claim in list(abandoned_claims(run.plan for run in runs)):
        name, why = f"{claim.plan.model} tag {claim.tag}", f"left by {claim.holder}, which has ended"
        removal = Removal(recipe=recipe, kind="lock", name=name, bytes=0, why=why)
        yield removal, partial(remove_claim, claim)


def _runs(home: Home, recipe: str) -> list[_Run]:
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
        changed = max(place.stat().st_mtime for place in places if place.is_file())
        found.append(_Run(paths, plan, release, changed))
    return sorted(found, key=lambda run: run.changed, reverse=True)


def _in_service(run: _Run) -> bool:
    """Whether a version of the run has an alias or is an anchor, in any registered model, or the MLflow run is running.

    A run whose record of its release is missing may have such a version: a process was killed after the promotion.
    True when the registry can't be read.
    """
    from mlflow.exceptions import MlflowException

    if not _has_store(run):
        return False
    try:
        client = connect_once(run.plan)
        serves = is_in_service(client, run.plan.run_key, run.release)
        return serves or (run.release is not None and is_running(client, run.release))
    except (EvergreenError, MlflowException) as error:
        log.warning("%s: kept, because its registry can't be read (%s)", run.paths.root, error)
        return True


def _has_store(run: _Run) -> bool:
    """Whether the run's MLflow store exists: connecting to a missing embedded store would create it."""
    return run.plan.settings.tracking.uri is not None or store_file(Home(Path(run.plan.home))).is_file()


def _caches(home: Home) -> list[str | None]:
    """Folders for downloaded datasets on this machine: the default one, and those that runs of the home name."""
    named = {
        run.plan.settings.storage.node_cache
        for one in home.runs("").glob("*")
        for run in _runs(home, one.name)
    }
    return [None, *sorted(one for one in named if one is not None)]


def _leftovers(caches: Sequence[str | None]) -> Iterator[_PlannedRemoval]:
    """Outside of homes: leftovers of killed runs, and datasets in nodes' caches that no process uses any more."""
    for found in abandoned_folders():
        kind: Kind = "Ray session" if found.is_session else "temporary files"
        removal = Removal(recipe="", kind=kind, name=str(found.path), bytes=_size(found.path), why=found.why)
        yield removal, partial(shutil.rmtree, found.path, ignore_errors=True)
    for path, why in (one for cache in caches for one in unused(cache)):
        removal = Removal(recipe="", kind="cached dataset", name=str(path), bytes=_size(path), why=why)
        yield removal, partial(remove_unused, path)


def _data(home: Home, recipe: str, used: set[str]) -> Iterator[_PlannedRemoval]:
    """Damaged datasets, datasets that no kept run was trained on (except the newest), and unneeded raw rows.

    Raw rows are not needed once their dataset is finished, or when they are older than 30 days.
    """
    for folder in sorted((home.datasets / recipe).glob("*.damaged-*")):
        yield _folder(home, recipe, "dataset", folder, "damaged, and set aside")
    made = [file.parent for file in (home.datasets / recipe).glob(f"*/{MANIFEST}")]
    datasets = _newest_first([folder for folder in made if ".damaged-" not in folder.name])
    stay = used | {folder.name for folder in datasets[:1]}
    for folder in datasets:
        if folder.name not in stay:
            yield _folder(home, recipe, "dataset", folder, "no kept run was trained on it")
    for folder in _newest_first([one for one in (home.raw / recipe).glob("*") if one.is_dir()]):
        if (home.datasets / recipe / folder.name / MANIFEST).is_file():
            yield _folder(home, recipe, "raw rows", folder, "their dataset is finished")
        elif folder.name not in used and time.time() - folder.stat().st_mtime > ABANDONED_AFTER_S:
            yield _folder(home, recipe, "raw rows", folder, "older than 30 days, and without a dataset")


def _newest_first(folders: Sequence[Path]) -> list[Path]:
    return sorted(folders, key=lambda folder: folder.stat().st_mtime, reverse=True)


def _folder(home: Home, recipe: str, kind: Kind, folder: Path, why: str) -> _PlannedRemoval:
    name = folder.relative_to(home.root).as_posix()
    removal = Removal(recipe=recipe, kind=kind, name=name, bytes=_size(folder), why=why)
    return removal, partial(remove_folder, folder)


def _run_folder(recipe: str, run: _Run, why: str) -> _PlannedRemoval:
    """Remove a run's folder, after its fence is closed: a worker that still lives elsewhere must not write there."""
    removal, remove = _folder(Home(Path(run.plan.home)), recipe, "run", run.paths.root, why)

    def fence_and_remove() -> None:
        Fence.begin(run.paths, new_driver())
        remove()

    return removal, fence_and_remove


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _version(recipe: str, run: _Run) -> Iterator[_PlannedRemoval]:
    release = run.release
    assert release is not None
    if not _has_store(run):
        return
    name, home = f"{release.model} version {release.version}", Home(Path(run.plan.home))
    removal = Removal(recipe=recipe, kind="version", name=name, bytes=0, why="its run is removed")
    yield removal, lambda: delete_version(connect_once(run.plan), home, release)
