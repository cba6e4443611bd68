"""Read-only queries of a home's embedded MLflow store (a SQLite file) without MLflow, whose import takes seconds.

Also finds problems of the store: runs that MLflow lists as running, tables of another MLflow version, a moved home.
"""

import hashlib
import re
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from training.errors import ResourceError
from training.storage.paths import Home

_TIMEOUT_S = 3.0
_LONGEST_NAME, _SHORTENED = 255, 120  # bytes of a folder's name; file systems allow 255
_ALIASES = (
    "select alias, version from registered_model_aliases "
    "where name = ? and exists (select 1 from runs where run_uuid = ?)"
)
_MODELS = "select name from registered_models"
_ALL_ALIASES = "select name, alias, version from registered_model_aliases"
_CHAMPION = "select version from registered_model_aliases where name = ? and alias = 'champion'"
_DELETED = "select experiment_id from experiments where name = ? and lifecycle_stage = 'deleted'"
_VERSION_TAGS = "select key, value from model_version_tags where name = ? and version = ?"
_MODEL_TAGS = "select key, value from registered_model_tags where name = ?"
_RUNNING = (
    "select distinct recipe.value, key.value from runs "
    "join tags recipe on recipe.run_uuid = runs.run_uuid and recipe.key = 'evergreen.recipe' "
    "left join tags key on key.run_uuid = runs.run_uuid and key.key = 'evergreen.run_key' "
    "where runs.status = 'RUNNING' and runs.lifecycle_stage = 'active'"
)
_LOCATIONS = "select name, artifact_location from experiments where artifact_location like 'file:///%'"
_MIGRATIONS = Path("store", "db_migrations", "versions")
_REVISION = re.compile(r"^(down_)?revision = (.*)$", re.MULTILINE)


class RunningRun(NamedTuple):
    """A run with status RUNNING in MLflow; `run_key` is empty when it is not known."""

    recipe: str
    run_key: str


class Schema(NamedTuple):
    """Revision of a store's tables; all revisions that the installed MLflow knows, and the newest of them."""

    revision: str
    known: frozenset[str]
    newest: str


def store_file(home: Home) -> Path:
    """Path of the store's SQLite file."""
    return home.mlflow_file


@contextmanager
def opened(home: Home) -> Iterator[sqlite3.Connection]:
    """A connection to the store, whose file must exist. Raises :class:`sqlite3.Error`."""
    # Writable, as only a writable connection rolls back the unfinished transaction of a killed writer.
    address = f"file:{quote(str(store_file(home)))}?mode=rw"
    with closing(sqlite3.connect(address, uri=True, timeout=_TIMEOUT_S)) as store:
        yield store


def aliases(home: Home, model: str, run_id: str) -> dict[str, str]:
    """Version by alias of `model`; empty when the store can't be read, or does not contain MLflow run `run_id`."""
    if not store_file(home).is_file():
        return {}
    try:
        with opened(home) as store:
            return {alias: str(version) for alias, version in store.execute(_ALIASES, (model, run_id))}
    except sqlite3.Error:
        return {}


def registered_models(home: Home) -> dict[str, dict[str, str]] | None:
    """Version by alias, by registered model; empty without a store, None when the store can't be read."""
    if not store_file(home).is_file():
        return {}
    try:
        with opened(home) as store:
            known: dict[str, dict[str, str]] = {name: {} for (name,) in store.execute(_MODELS)}
            for name, alias, version in store.execute(_ALL_ALIASES):
                known.setdefault(name, {})[alias] = str(version)
            return known
    except sqlite3.Error:
        return None


def champion_tags(home: Home, model: str) -> tuple[str | None, dict[str, str]]:
    """Number and tags of the champion of `model`; (None, {}) without a champion, or when the store can't be read."""
    if not store_file(home).is_file():
        return None, {}
    try:
        with opened(home) as store:
            row = store.execute(_CHAMPION, (model,)).fetchone()
            rows = store.execute(_VERSION_TAGS, (model, row[0])) if row else ()
            return (str(row[0]), dict(rows)) if row else (None, {})
    except sqlite3.Error:
        return None, {}


def tags_of_version(home: Home, model: str, number: str) -> dict[str, str]:
    """Tags of version `number` of `model`; {} without this version, or when the store can't be read."""
    if not store_file(home).is_file():
        return {}
    try:
        with opened(home) as store:
            return dict(store.execute(_VERSION_TAGS, (model, number)))
    except sqlite3.Error:
        return {}


def tags_of_model(home: Home, model: str) -> dict[str, str]:
    """Tags of the registered model; {} without this model, or when the store can't be read."""
    if not store_file(home).is_file():
        return {}
    try:
        with opened(home) as store:
            return dict(store.execute(_MODEL_TAGS, (model,)))
    except sqlite3.Error:
        return {}


def deleted_experiment(home: Home, name: str) -> str | None:
    """Id of the experiment `name` if the experiment was deleted; None otherwise, or when the store can't be read."""
    if not store_file(home).is_file():
        return None
    try:
        with opened(home) as store:
            row = store.execute(_DELETED, (name,)).fetchone()
            return str(row[0]) if row else None
    except sqlite3.Error:
        return None


def running(store: sqlite3.Connection) -> list[RunningRun]:
    """Runs of Evergreen with status RUNNING in MLflow."""
    return [RunningRun(recipe, run_key or "") for recipe, run_key in store.execute(_RUNNING)]


def schema(store: sqlite3.Connection) -> Schema:
    """Revision of the store's tables, and the revisions that the installed MLflow knows."""
    row = store.execute("select version_num from alembic_version").fetchone()
    known, replaced = _migrations()
    return Schema(row[0] if row else "", known, next(iter(known - replaced), ""))


def moved_from(home: Home) -> Path | None:
    """Former path of a home that was moved, if MLflow's files are now missing at that path; else None.

    MLflow stores absolute paths. Also None when the store can't be read: opening the store gives the reason.
    """
    if not store_file(home).is_file():
        return None
    try:
        with opened(home) as store:
            locations = store.execute(_LOCATIONS).fetchall()
    except sqlite3.Error:
        return None
    roots = (_lost_root(home, name, _path_of(location)) for name, location in locations)
    return next((root for root in roots if root is not None), None)


def check_writes_here(home: Home, experiment: str) -> None:
    """Raise :class:`ResourceError` when a run of `experiment` would write its models into another home.

    MLflow keeps the absolute path of an experiment's folder, also in a home that was moved or copied. Also returns when
    the store can't be read: opening the store gives the reason.
    """
    if not store_file(home).is_file():
        return
    try:
        with opened(home) as store:
            locations = store.execute(f"{_LOCATIONS} and name = ?", (experiment,)).fetchall()
    except sqlite3.Error:
        return
    for _, location in locations:
        folder = _path_of(location)
        if _is_of_another_home(home, experiment, folder):
            before = folder.parents[1]
            raise ResourceError(
                f"this home, {home.root}, was moved or copied from {before}: MLflow keeps absolute paths, so a run "
                f"would write its models there. {moved_remedy(home, before)} Or use the home there, or a new one."
            )


def artifacts_of(home: Home, experiment: str) -> Path:
    """Folder of the home for the files of an experiment, whose name may contain a slash."""
    quoted = quote(experiment, safe=" ")
    if len(quoted) > _LONGEST_NAME:
        quoted = f"{quoted[:_SHORTENED]}-{hashlib.sha256(experiment.encode()).hexdigest()[:16]}"
    return home.mlflow_artifacts / quoted


def check_not_moved(home: Home) -> None:
    """Raise :class:`ResourceError` when the home was moved, so that MLflow no longer finds its models' files."""
    if (before := moved_from(home)) is not None:
        raise ResourceError(f"{moved(home, before)} {moved_remedy(home, before)}")


def moved(home: Home, before: Path) -> str:
    """Message that says that the home was moved from `before`, and why this matters."""
    return f"this home was moved from {before} to {home.root}, and MLflow keeps absolute paths of its models."


def moved_remedy(home: Home, before: Path) -> str:
    """Message with the shell commands that make the files of a home moved from `before` accessible again."""
    old, new = shlex.quote(str(before)), shlex.quote(str(home.root))
    back = f"Move the home back (mv {new} {old}), or link its old path to its new path"
    if before.exists() or before.is_symlink():
        return f"Another file or folder is at {before} now; move that away first. {back} (ln -s {new} {old})."
    parent = shlex.quote(str(before.parent))
    make = "" if before.parent.is_dir() else f"mkdir -p {parent} && "
    return f"{back} ({make}ln -s {new} {old})."


def _path_of(location: str) -> Path:
    return Path(unquote(urlsplit(location).path))


def _is_of_another_home(home: Home, experiment: str, folder: Path) -> bool:
    """Whether `folder` is the one that Evergreen chose for `experiment` in another home."""
    chosen = len(folder.parents) >= 2 and artifacts_of(Home(folder.parents[1]), experiment) == folder
    return chosen and artifacts_of(home, experiment).resolve() != folder.resolve()


def _lost_root(home: Home, experiment: str, folder: Path) -> Path | None:
    """Root of another home in which `folder` is the folder of `experiment`, if files are missing there; else None."""
    if not _is_of_another_home(home, experiment, folder):
        return None
    came_along = artifacts_of(home, experiment)
    lost = not folder.is_dir() or any(not (folder / entry.name).exists() for entry in came_along.glob("*"))
    return folder.parents[1] if lost else None


def _migrations() -> tuple[frozenset[str], frozenset[str]]:
    """All revisions that the installed MLflow knows, and the revisions that a later revision replaces."""
    package = find_spec("mlflow")
    folders = list(package.submodule_search_locations or ()) if package else []
    known: set[str] = set()
    replaced: set[str] = set()
    for file in (file for folder in folders for file in (Path(folder) / _MIGRATIONS).glob("*.py")):
        for down, value in _REVISION.findall(file.read_text(encoding="utf-8")):
            (replaced if down else known).update(re.findall(r"[\"'](\w+)[\"']", value))
    return frozenset(known), frozenset(replaced)
