"""Objects under `storage.url` that no run needs: for `evergreen gc`.

In: a recipe, what this home knows of its runs, and the store's listing. Out: objects that can be deleted. Other homes
may use the same store, and this home knows their runs only from the store's logs and times of writing. So these
objects are kept, whichever home wrote them: runs that are not finished and changed within 30 days, with their
datasets; finished trainings of runs that this home does not know; datasets that a training used within a week. A
registered model does not need the store.
"""

import logging
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from training.attempts.fence import new_driver
from training.checkpoints.opening import prefix_of_run
from training.checkpoints.stored_run import RunState, StoredRun
from training.errors import DataError, EvergreenError
from training.storage.objects.base import ObjectStore, StoredObject, open_store
from training.storage.paths import is_key_name

log = logging.getLogger("evergreen.retention")

ABANDONED_AFTER_S = 30 * 86400.0
QUIET_S = 7 * 86400.0
# A finished run that this home has and does not need any more is deleted from the store after a day without changes.
_NOT_KEPT_S = 86400.0


class Unneeded(NamedTuple):
    """Objects under one prefix that can be deleted.

    `checkpoints_of` is the run whose checkpoints the objects are; None for other objects. `whole` is set if the objects
    are all objects of a run: the run, and the newest entry of its log when the run was listed.
    """

    what: str
    prefix: str
    objects: tuple[StoredObject, ...]
    why: str
    store: ObjectStore
    checkpoints_of: StoredRun | None = None
    whole: tuple[StoredRun, RunState] | None = None

    def delete(self) -> None:
        """Delete the objects; before checkpoints are deleted, a new entry of the run's log leaves them out.

        A run that an attempt of another home has begun again since the listing stays, as does a dataset that a
        training has begun to use.
        """
        if self.whole is not None:
            run, known = self.whole
            if not run.remove(known, new_driver()):
                log.warning("%s/%s: in use again, so the run stays", self.store.url, self.prefix)
        elif self.checkpoints_of is not None:
            self.checkpoints_of.drop_checkpoints()
        elif self.what == "stored dataset" and set(self.store.listing(self.prefix)) != set(self.objects):
            log.warning("%s/%s: in use again, so the dataset stays", self.store.url, self.prefix)
        else:
            self.store.delete(stored_object.key for stored_object in self.objects)


@dataclass
class _Stored:
    """A run in the store: its objects, and the newest entry of its log (None: not readable)."""

    name: str
    run: StoredRun
    objects: list[StoredObject] = field(default_factory=list)
    state: RunState | None = None

    @property
    def changed(self) -> float:
        return max(stored_object.changed for stored_object in self.objects)

    def with_keys(self, keys: Iterable[str]) -> tuple[StoredObject, ...]:
        chosen = set(keys)
        return tuple(stored_object for stored_object in self.objects if stored_object.key in chosen)


@dataclass(frozen=True)
class RecipeStore:
    """A recipe's runs in a store, as they were listed once, by the name of the run's folder."""

    store: ObjectStore
    recipe: str
    runs: Mapping[str, _Stored]

    def whole_runs(self, kept: Mapping[str, bool]) -> dict[str, Unneeded]:
        """The runs that nothing needs any more, by name.

        `kept` has an entry for each run that this home knows, by name: whether the home still needs the run.
        """
        unneeded = {name: _whole(self.store, run, kept.get(name)) for name, run in self.runs.items()}
        return {name: objects for name, objects in unneeded.items() if objects is not None}

    def parts(self, left_out: Container[str], fingerprints: set[str] | None) -> Iterator[Unneeded]:
        """Unneeded objects of the runs that are not in `left_out`, and unneeded datasets.

        `fingerprints` are the first 16 characters of the fingerprints of the kept runs' datasets; None: they are not
        known, so every dataset may be needed. If the store can't be read any more, a warning says so.
        """
        try:
            for name, run in self.runs.items():
                if name not in left_out:
                    yield from _parts(self.store, run)
            if fingerprints is not None:
                yield from _datasets(self.store, self.recipe, list(self.runs.values()), fingerprints)
        except EvergreenError as error:
            log.warning("%s No other objects of recipe %s are removed from the store.", error, self.recipe)


def read_store(url: str, recipe: str) -> RecipeStore | None:
    """List the runs of a recipe in the store at `url`; None, with a warning, if the store can't be read."""
    try:
        store = open_store(url)
        return RecipeStore(store, recipe, {run.name: run for run in _runs(store, recipe)})
    except EvergreenError as error:
        log.warning(
            "%s Nothing of recipe %s is removed from the store, and runs that it may hold stay.",
            error,
            recipe,
        )
        return None


def _runs(store: ObjectStore, recipe: str) -> Iterator[_Stored]:
    runs: dict[str, _Stored] = {}
    for stored_object in store.listing(prefix_of_run(recipe, "").rstrip("/")):
        name = stored_object.key.split("/")[2]
        if not is_key_name(name):
            continue
        run = runs.setdefault(name, _Stored(name, StoredRun(store, prefix_of_run(recipe, name))))
        run.objects.append(stored_object)
    for run in runs.values():
        try:
            run.state = run.run.newest_entry()
        except DataError as error:
            log.warning("%s Nothing of this run is removed from the store.", error)
        yield run


def _whole(store: ObjectStore, run: _Stored, is_kept: bool | None) -> Unneeded | None:
    """The removal of a whole run; `is_kept` is None for a run that this home does not know."""
    quiet_s = time.time() - run.changed
    if run.state is None:
        return None
    abandoned = not run.state.model and quiet_s > ABANDONED_AFTER_S
    not_kept = is_kept is False and bool(run.state.model) and quiet_s > _NOT_KEPT_S
    if not ((not is_kept and abandoned) or not_kept):
        return None
    why = f"{'not finished' if abandoned else 'not kept here'}, no change for {quiet_s / 86400:.0f} days"
    return Unneeded("stored run", run.run.prefix, tuple(run.objects), why, store, whole=(run.run, run.state))


def _parts(store: ObjectStore, run: _Stored) -> Iterator[Unneeded]:
    if run.state is None:
        return
    left = run.with_keys(run.run.unused(run.state))
    if left:
        why = "uploads of attempts that have ended, which no checkpoint names"
        yield Unneeded("stored uploads", f"{run.run.prefix}/files", left, why, store)
    if run.state.model and run.state.checkpoints and time.time() - run.changed > QUIET_S:
        named = run.with_keys(file.key for checkpoint in run.state.checkpoints for file in checkpoint.files)
        yield Unneeded(
            "stored checkpoints", f"{run.run.prefix}/files", named, "the model is finished", store, run.run
        )


def _datasets(
    store: ObjectStore, recipe: str, runs: list[_Stored], fingerprints: set[str]
) -> Iterator[Unneeded]:
    live = [run for run in runs if _may_be_live(run)]
    if any(run.state is None or not run.state.dataset for run in live):  # their datasets are not known
        return
    used = {run.state.dataset for run in live if run.state is not None}
    used |= {f"datasets/{recipe}/{fingerprint}" for fingerprint in fingerprints}
    datasets: dict[str, list[StoredObject]] = {}
    for stored_object in store.listing(f"datasets/{recipe}"):
        *parts, _ = stored_object.key.split("/")
        if len(parts) > 2 and is_key_name(parts[2]):
            datasets.setdefault("/".join(parts[:3]), []).append(stored_object)
    for prefix, objects in datasets.items():
        quiet_s = time.time() - max(stored_object.changed for stored_object in objects)
        if prefix not in used and quiet_s > QUIET_S:
            why = f"no run that may resume uses it, no change for {quiet_s / 86400:.0f} days"
            yield Unneeded("stored dataset", prefix, tuple(objects), why, store)


def _may_be_live(run: _Stored) -> bool:
    unfinished = run.state is None or not run.state.model
    return unfinished and time.time() - run.changed < ABANDONED_AFTER_S
