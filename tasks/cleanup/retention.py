"""Garbage collection: remove what a home no longer needs, also in object stores, and leftovers of killed runs.

In: a home, and the number of finished runs to keep for each recipe. Out: the list of removals, done or planned.
Also kept are runs with a version that has an alias or is an anchor in any registered model, runs from whose weights a
kept run starts, unfinished runs changed in the last 30 days, runs with a damaged record, the datasets of kept runs,
searches of the last 30 days with a kept trial, and versions that were rolled back. Running the same command again
recreates a removed run or dataset. Fails with SettingError when the number of runs to keep is below 1. A recipe with an
active run is left alone, and so is a recipe whose registry does not answer. An error that stops the removals of a
recipe stops those of no other recipe. On a full disk, what can be removed without writing a file is removed first.
"""

import shutil
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain
from pathlib import Path

from tasks.cleanup.abandoned_claims import abandoned_claims, remove_claim
from tasks.cleanup.abandoned_folders import abandoned_folders
from tasks.cleanup.old_searches import old_searches
from tasks.cleanup.recipe_runs import RecipeRun, has_store, in_service, keeps_version, plans_of, runs_of
from tasks.cleanup.removals import Collection, Kind, PlannedRemoval, Removal, folder_removal, size_of
from tasks.cleanup.stored_objects import ABANDONED_AFTER_S, RecipeStore, Unneeded, read_store
from tasks.registry.removal import delete_version
from tasks.trackers.mlflow_run import connect_once
from training.attempts.fence import Fence, new_driver
from training.data.manifest import MANIFEST
from training.errors import ResourceError, SettingError, classify
from training.initial_weights import is_path, is_version
from training.plan import RunPlan
from training.ray_cluster.node_caches import remove_unused, unused
from training.redaction import redact
from training.storage.files import sweep
from training.storage.paths import Home, is_key_name
from training.storage.run_lock import check_no_run, run_lock

# A claim and a version are in the registry, and a file closes the fence of a removed run.
_WITHOUT_WRITING: frozenset[Kind] = frozenset(
    {"search", "checkpoints", "dataset", "raw rows", "Ray session", "temporary files", "cached dataset"}
)


def collect(
    home: Home, keep: int, versions: bool = False, dry_run: bool = False, node_cache: str | None = None
) -> Collection:
    """Remove what `home` no longer needs, for every recipe; with `dry_run`, only list it and change no file.

    `versions` also deletes the registered versions and MLflow runs of removed runs; MLflow only marks them as deleted
    until `mlflow gc`. `node_cache` is a folder of downloaded datasets that is cleaned beside those that the runs of
    `home` name. Raises :class:`SettingError` when `keep` is below 1.
    """
    if keep < 1:
        raise SettingError(f"keep: {keep} is not possible; at least 1 finished run must stay.")
    plans = {folder.name: list(plans_of(home, folder.name)) for folder in home.runs("").glob("*")}
    removals: list[Removal] = []
    left_alone: dict[str, str] = {}
    failed: dict[str, str] = {}
    unreadable: set[str] = set()  # registries, by address
    recipes = {folder.name for parent in (home.runs(""), home.searches("")) for folder in parent.glob("*")}
    for recipe in sorted(recipes):
        with _error_noted(failed, recipe):
            try:
                with nullcontext() if dry_run else run_lock(home, recipe):
                    if dry_run:
                        check_no_run(home, recipe)
                    else:
                        _sweep(home, recipe)
                    # Listed first: a removal must not change what is found later, or a dry run would differ.
                    others = [plan for name in plans if name != recipe for plan in plans[name]]
                    planned = list(_removable(home, recipe, keep, versions, unreadable, others))
                    removals += _execute(planned, dry_run)
            except Exception as error:
                known = classify(error)
                if known is None or not known.transient:
                    raise
                left_alone[recipe] = str(known)
    with _error_noted(failed, ""):
        removals += _execute(_leftovers(_caches(chain.from_iterable(plans.values()), node_cache)), dry_run)
    return Collection(removals=tuple(removals), left_alone=left_alone, failed=failed)


@contextmanager
def _error_noted(failed: dict[str, str], recipe: str) -> Iterator[None]:
    """Note an error of the block for which Evergreen knows a remedy, so that other removals follow."""
    try:
        yield
    except Exception as error:
        known = classify(error)
        if known is None:
            raise
        failed[recipe] = str(known)


def _sweep(home: Home, recipe: str) -> None:
    searches = home.searches(recipe)
    folders = (home.runs(recipe), home.datasets / recipe, home.raw / recipe, searches)
    for folder in (*folders, *searches.glob("*")):
        sweep(folder)
    for left in home.runs(recipe).glob("*/.*.removed"):  # checkpoints
        shutil.rmtree(left, ignore_errors=True)


def _execute(work: "Iterable[PlannedRemoval]", dry_run: bool) -> Iterator[Removal]:
    """Do the removals. After the first that finds the disk full, those that write no file come before the others."""
    postponed: list[PlannedRemoval] = []
    for removal, remove in work:
        if postponed and removal.kind not in _WITHOUT_WRITING:
            postponed.append((removal, remove))
            continue
        try:
            if not dry_run:
                remove()
        except Exception as error:
            if removal.kind in _WITHOUT_WRITING or not isinstance(classify(error), ResourceError):
                raise
            postponed.append((removal, remove))
        else:
            yield removal
    for removal, remove in postponed:
        remove()
        yield removal


def _removable(
    home: Home,
    recipe: str,
    keep: int,
    versions: bool,
    unreadable: set[str],
    others: list[RunPlan],
) -> Iterator[PlannedRemoval]:
    """What the recipe does not need any more; `others` are the plans of the other recipes' runs."""
    runs, damaged = runs_of(home, recipe)
    finished = [run for run in runs if run.release is not None]
    yield from _claims(recipe, runs)
    unneeded = dict(_unneeded(runs, finished[:keep], unreadable))
    while needed := _started_from(
        unneeded, runs, [*others, *(run.plan for run in runs if run.paths.root not in unneeded)]
    ):
        unneeded = {root: why for root, why in unneeded.items() if root not in needed}
    stores = {url: read_store(url, recipe) for url in sorted(filter(None, map(_url, runs)))}
    known = {run.paths.root.name: run.paths.root not in unneeded for run in runs} | dict.fromkeys(
        damaged, True
    )
    whole = {url: store.whole_runs(known) for url, store in stores.items() if store is not None}
    # Before the folders: a home that has removed a run's folder would leave the run in the store for ever.
    for url, going in whole.items():
        yield from (_stored(recipe, url, stored_run) for stored_run in going.values())
    kept = [run for run in runs if run.paths.root not in unneeded or _waits_for_its_store(run, stores, whole)]
    for run in runs:
        if run not in kept:
            yield from _run_removals(recipe, run, unneeded[run.paths.root], versions)
        # The newest finished run keeps its checkpoints.
        elif run in finished[1:] and run.paths.checkpoints.is_dir():
            yield folder_removal(home, recipe, "checkpoints", run.paths.checkpoints, "the model is finished")
    used = _used_datasets(kept, damaged.values())
    removed = {run.paths.root for run in runs if run not in kept}
    for search in old_searches(home, recipe, removed):
        yield folder_removal(home, recipe, "search", search.folder, search.why)
    yield from _data(home, recipe, used)
    for url, store in stores.items():
        if store is not None:
            left_out = {*whole[url], *damaged}
            yield from (_stored(recipe, url, part) for part in store.parts(left_out, used))


def _used_datasets(kept: Iterable[RecipeRun], damaged: Iterable[str | None]) -> set[str] | None:
    """Names of the datasets of kept runs, and of runs with a damaged record; None when a name is not known."""
    fingerprints = [*(run.plan.fingerprint for run in kept), *damaged]
    names = {fingerprint[:16] for fingerprint in fingerprints if fingerprint is not None}
    return None if None in fingerprints else names


def _unneeded(
    runs: list[RecipeRun], newest: list[RecipeRun], unreadable: set[str]
) -> Iterator[tuple[Path, str]]:
    """The folder of each run that this home does not need any more, and why; `newest` are finished runs to keep."""
    for run in runs:
        if run.release is None:
            days = (time.time() - run.changed) / 86400
            if days * 86400 >= ABANDONED_AFTER_S and not in_service(run, unreadable):
                yield run.paths.root, f"not finished, no change for {days:.0f} days"
        elif run not in newest and not in_service(run, unreadable):
            yield run.paths.root, f"finished, not in service, older than the newest {len(newest)}"


def _started_from(folders: Iterable[Path], runs: list[RecipeRun], plans: Iterable[RunPlan]) -> set[Path]:
    """Those of the `folders` of `runs` from whose weights, or whose version, runs with these plans start."""
    initial = [plan.initial for plan in plans if plan.initial is not None]
    weights = {Path(given.reference).resolve() for given in initial if is_path(given.reference)}
    named = {(given.model, given.version) for given in initial if is_version(given.reference)}
    of_versions = {
        run.paths.root for run in runs if run.release and (run.release.model, run.release.version) in named
    }
    return {
        folder
        for folder in folders
        if folder in of_versions or any(file.is_relative_to(folder.resolve()) for file in weights)
    }


def _url(run: RecipeRun) -> str | None:
    return run.plan.settings.storage.url


def _waits_for_its_store(
    run: RecipeRun, stores: Mapping[str, RecipeStore | None], whole: Mapping[str, Container[str]]
) -> bool:
    """Whether the run's store can't be read, or has the run and keeps it for now. Then the run's folder stays, too."""
    url, name = _url(run), run.paths.root.name
    if url is None:
        return False
    store = stores[url]
    return store is None or (name in store.runs and name not in whole[url])


def _stored(recipe: str, url: str, unneeded: Unneeded) -> PlannedRemoval:
    size = sum(stored_object.bytes for stored_object in unneeded.objects)
    name = f"{url}/{unneeded.prefix}"
    return Removal(
        recipe=recipe, kind=unneeded.what, name=name, bytes=size, why=unneeded.why
    ), unneeded.delete


def _claims(recipe: str, runs: list[RecipeRun]) -> Iterator[PlannedRemoval]:
    """Lock claims of killed processes of this home; the first removal ends all such claims of its model."""
    for claim in list(abandoned_claims(run.plan for run in runs)):
        name, why = f"{claim.plan.model} tag {claim.tag}", f"left by {claim.holder}, which has ended"
        removal = Removal(recipe=recipe, kind="lock", name=name, bytes=0, why=why)
        yield removal, partial(remove_claim, claim)


def _caches(plans: Iterable[RunPlan], given: str | None) -> list[str | None]:
    """Folders for downloaded datasets on this machine: the default one, `given`, and those that `plans` name."""
    named = {given, *(plan.settings.storage.node_cache for plan in plans)}
    return [None, *sorted(cache for cache in named if cache)]


def _leftovers(caches: Sequence[str | None]) -> Iterator[PlannedRemoval]:
    """Outside of homes: leftovers of killed runs, and datasets in nodes' caches that no process uses any more."""
    for leftover in abandoned_folders():
        kind: Kind = "Ray session" if leftover.is_session else "temporary files"
        removal = Removal(
            recipe="", kind=kind, name=str(leftover.path), bytes=size_of(leftover.path), why=leftover.why
        )
        yield removal, partial(shutil.rmtree, leftover.path, ignore_errors=True)
    for path, why in (dataset for cache in caches for dataset in unused(cache)):
        removal = Removal(recipe="", kind="cached dataset", name=str(path), bytes=size_of(path), why=why)
        yield removal, partial(remove_unused, path)


def _data(home: Home, recipe: str, used: set[str] | None) -> Iterator[PlannedRemoval]:
    """Damaged datasets, datasets that no kept run was trained on (except the newest), and unneeded raw rows.

    Raw rows are not needed once their dataset is finished, or when they are older than 30 days. When `used` is None,
    all datasets but the damaged ones count as used.
    """
    for folder in sorted((home.datasets / recipe).glob("*.damaged-*")):
        yield folder_removal(home, recipe, "dataset", folder, "damaged, and set aside")
    made = [file.parent for file in (home.datasets / recipe).glob(f"*/{MANIFEST}")]
    datasets = _newest_first([folder for folder in made if ".damaged-" not in folder.name])
    newest = datasets[:1]
    for folder in datasets:
        if used is not None and folder.name not in used and folder not in newest:
            yield folder_removal(home, recipe, "dataset", folder, "no kept run was trained on it")
    for folder in _newest_first(_key_folders(home.raw / recipe)):
        if (home.datasets / recipe / folder.name / MANIFEST).is_file():
            yield folder_removal(home, recipe, "raw rows", folder, "their dataset is finished")
        elif (
            used is not None
            and folder.name not in used
            and time.time() - folder.stat().st_mtime > ABANDONED_AFTER_S
        ):
            yield folder_removal(
                home, recipe, "raw rows", folder, "older than 30 days, and without a dataset"
            )


def _key_folders(parent: Path) -> list[Path]:
    return [path for path in parent.glob("*") if path.is_dir() and is_key_name(path.name)]


def _newest_first(folders: Sequence[Path]) -> list[Path]:
    return sorted(folders, key=lambda folder: folder.stat().st_mtime, reverse=True)


def _run_removals(recipe: str, run: RecipeRun, why: str, versions: bool) -> Iterator[PlannedRemoval]:
    """The removal of a run's folder; with `versions`, first that of its registered version."""
    if versions and keeps_version(run):
        why += f"; {_name_of_version(run)} stays in MLflow, because it was rolled back"
    elif versions and run.release is not None:
        yield from _version(recipe, run)
    yield _run_folder(recipe, run, why)


def _run_folder(recipe: str, run: RecipeRun, why: str) -> PlannedRemoval:
    """Remove a run's folder, after its fence is closed: a worker that still lives elsewhere must not write there."""
    removal, remove = folder_removal(Home(Path(run.plan.home)), recipe, "run", run.paths.root, why)

    def fence_and_remove() -> None:
        Fence.begin(run.paths, new_driver())
        remove()

    return removal, fence_and_remove


def _version(recipe: str, run: RecipeRun) -> Iterator[PlannedRemoval]:
    release, home = run.release, Home(Path(run.plan.home))
    assert release is not None
    if not has_store(run):
        return
    removal = Removal(
        recipe=recipe,
        kind="version",
        name=_name_of_version(run),
        bytes=0,
        why="its run is removed",
        tracking_uri=redact(str(run.plan.settings.tracking.uri or "")),
    )
    yield removal, lambda: delete_version(connect_once(run.plan), home, release)


def _name_of_version(run: RecipeRun) -> str:
    assert run.release is not None
    return f"{run.release.model} version {run.release.version}"
