"""Checks of the places where Evergreen keeps its state: the home, its locks, and MLflow's store."""

import json
import os
import shlex
import sqlite3
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from importlib.metadata import version
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import unquote

import psutil
from filelock import FileLock, Timeout

from tasks.doctor import Check
from tasks.doctor.credentials import mlflow_credentials_check
from tasks.registry.lock import LEASE_S, claims_in
from tasks.trackers.embedded_store import (
    RunningRun,
    Schema,
    moved,
    moved_from,
    moved_remedy,
    opened,
    running,
    schema,
    store_file,
)
from tasks.trackers.mlflow_run import connect
from tasks.trackers.paged_search import all_pages
from training.errors import EvergreenError
from training.http_errors import REFUSED
from training.plan import arguments_of_run
from training.redaction import redact
from training.storage.paths import HOME_VARIABLE, Home
from training.storage.run_lock import lock_file

_REMOTE = ("9p", "afs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "nfs", "smb")
_SEARCHED_BYTES = 256 << 20
_TIMEOUT_S = 3.0
_CERTIFICATES = ("MLFLOW_TRACKING_SERVER_CERT_PATH", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_STORE = "MLflow store"
_COUNTS = "select (select count(*) from registered_models), (select count(*) from model_versions)"


def store_checks(home: Home, tracking_uri: str | None, deep: bool) -> Iterator[Check]:
    """Check the home's file system and locks, then MLflow.

    With `deep`, and for a store that is neither a server nor the home's, open the store with MLflow's own client.
    """
    yield file_system_check(home.root)
    yield lock_check(home)
    if not tracking_uri:
        yield from embedded_store_checks(home)
    elif tracking_uri.startswith("http"):
        yield from mlflow_server_checks(tracking_uri, home)
    else:
        yield database_check(home, tracking_uri)
        return
    if deep:
        yield opened_store_check(home, tracking_uri)


def file_system_check(root: Path) -> Check:
    """Check that the home is on a disk of this machine, which SQLite and locks need."""
    kind = file_system(root)
    if not kind.startswith(_REMOTE):
        return Check(name="home", ok=True, found=f"{root} is writable, on {kind}")
    remedy = f"SQLite may be damaged there: set {HOME_VARIABLE} to a local folder, or use an MLflow server."
    return Check(
        name="home", ok=None, found=f"{root} is writable, on {kind}: shared over a network", remedy=remedy
    )


def file_system(path: Path) -> str:
    """Type of the file system that holds `path`, such as ext4; `unknown` if the system does not report the type."""
    mounts = {Path(partition.mountpoint): partition.fstype for partition in psutil.disk_partitions(all=True)}
    return next((mounts[folder] for folder in (path, *path.parents) if folder in mounts), "unknown")


def lock_check(home: Home) -> Check:
    """Check that a held lock excludes other holders."""
    file = home.locks / "doctor.lock"
    try:
        home.locks.mkdir(parents=True, exist_ok=True)
        with FileLock(file, timeout=_TIMEOUT_S):
            works = _is_held(file)
    except Timeout:
        works = True  # another `evergreen doctor` holds the lock, which excluded this process
    except OSError as error:
        return Check(name="locks", ok=False, found=f"{file}: {error.strerror}", remedy=_lock_remedy())
    if works:
        return Check(name="locks", ok=True, found="a held lock excludes other processes")
    return Check(name="locks", ok=False, found=f"{file}: two holders at once", remedy=_lock_remedy())


def embedded_store_checks(home: Home) -> Iterator[Check]:
    """Check MLflow's SQLite file in the home; it is read without MLflow."""
    file = store_file(home)
    if not file.exists():
        yield Check(name=_STORE, ok=None, found=f"{file}: none yet; the first run creates it")
        return
    try:
        with opened(home) as store:
            wrong = schema_check(home, schema(store))
            yield wrong or _contents_check(file, store)
            runs = [] if wrong else running(store)
    except sqlite3.Error as error:
        yield unusable_check(file, error)
        return
    if (before := moved_from(home)) is not None:
        remedy = moved_remedy(home, before)
        yield Check(name="models' files", ok=False, found=moved(home, before), remedy=remedy)
    yield from (_unfinished(home, run) for run in runs if not _runs(home, run.recipe))


def schema_check(home: Home, tables: Schema) -> Check | None:
    """The failed check of the store's schema revision; None when it is the revision of the installed MLflow."""
    if tables.revision == tables.newest or not tables.newest:
        return None
    file, ours = store_file(home), version("mlflow")
    problem = (
        f"{file}: its tables are of revision {tables.revision or 'none'}, MLflow {ours} needs {tables.newest}"
    )
    if tables.revision in tables.known:
        copy = f"cp {shlex.quote(str(file))} {shlex.quote(f'{file}.before-upgrade')}"
        upgrade = f"mlflow db upgrade {shlex.quote(home.mlflow_uri)}"
        remedy = (
            f"An older MLflow created the store. While no program uses the store, make a backup ({copy}), then: "
            f"{upgrade}"
        )
    else:
        remedy = f"A newer MLflow than {ours} created the store: install that version, or restore a backup."
    return Check(name=_STORE, ok=False, found=problem, remedy=remedy)


def unusable_check(file: Path, error: sqlite3.Error) -> Check:
    """The failed check of a store that SQLite can't read: locked by a process, damaged, or not accessible.

    No remedy deletes the store.
    """
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # only errors that SQLite itself raises have a code
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return _locked_check(file, error)
    remedy = (
        "Restore a backup of the file. Keep the damaged file: SQLite's .recover reads what is left in it."
    )
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY):
        remedy = "Make the file and its folder readable and writable for this user."
    return Check(name=_STORE, ok=False, found=f"{file}: {error}", remedy=remedy)


def _locked_check(file: Path, error: sqlite3.Error) -> Check:
    held = holders(file)
    problem = f"{file}: {error}"
    if not held:
        remedy = (
            "A process of another user or on another machine has locked the store. Wait until the process ends; an "
            f"administrator finds the process with: fuser -v {shlex.quote(str(file))}"
        )
        return Check(name=_STORE, ok=False, found=problem, remedy=remedy)
    listed = ", ".join(f"{process.pid} ({' '.join(process.cmdline())[:80]})" for process in held)
    pids = " ".join(str(process.pid) for process in held)
    remedy = f"Wait until the process ends, or end the process: kill {pids}. The lock ends with the process."
    return Check(name=_STORE, ok=False, found=f"{problem}; open in process {listed}", remedy=remedy)


def holders(file: Path) -> list[psutil.Process]:
    """Other processes that have `file` open, as far as this user may inspect them."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            opened_files = {Path(open_file.path) for open_file in process.open_files()}
            if process.pid != os.getpid() and file.resolve() in opened_files:
                processes.append(process)
    return processes


def mlflow_server_checks(uri: str, home: Home) -> Iterator[Check]:
    """Check that an MLflow server answers, has the version of the installed MLflow, and accepts the credentials."""
    yield (server := mlflow_server_check(uri))
    if server.ok is not False:
        yield mlflow_credentials_check(uri, home)


def mlflow_server_check(uri: str) -> Check:
    """Check that an MLflow server answers and has the version of the installed MLflow."""
    uri = redact(uri)  # urllib takes a password in an address for a part of the port
    try:
        address = f"{uri.rstrip('/')}/version"
        context = _certificates() if uri.startswith("https:") else None
        with urllib.request.urlopen(address, timeout=_TIMEOUT_S, context=context) as answer:
            server = answer.read(100).decode().strip()
    except HTTPError as error:
        if error.code not in REFUSED:
            return _unanswered(uri, error)
        summary = f"{uri} answers; its version is not shown without credentials (status {error.code})"
        return Check(name="MLflow server", ok=None, found=summary)
    except (OSError, ValueError, HTTPException) as error:
        return _unanswered(uri, error)
    ours = version("mlflow")
    remedy = (
        ""
        if server == ours
        else f"Run MLflow {ours} on the server: different versions may not work together."
    )
    summary = f"{uri} answers, version {server}"
    return Check(name="MLflow server", ok=True if server == ours else None, found=summary, remedy=remedy)


def _certificates() -> ssl.SSLContext:
    """The certificates that MLflow's client accepts, by the same environment variables.

    Raises OSError that names the file when one of these variables names a file that is missing or no certificate.
    """
    given = next((value for name in _CERTIFICATES if (value := os.environ.get(name))), None)
    file = Path(given).expanduser() if given else None
    if file is not None and not file.exists():
        raise FileNotFoundError(f"{file}, which one of {', '.join(_CERTIFICATES)} names, does not exist")
    is_folder = file is not None and file.is_dir()
    context = ssl.create_default_context(
        cafile=None if is_folder else file, capath=file if is_folder else None
    )
    if os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _unanswered(uri: str, error: Exception) -> Check:
    remedy = "Start the server, or correct tracking.uri."
    if isinstance(error, FileNotFoundError) or "CERTIFICATE" in str(error):
        remedy = f"Set {_CERTIFICATES[0]} to the file with the certificates of the server's authority."
    return Check(name="MLflow server", ok=False, found=f"{uri}: {error}", remedy=remedy)


def database_check(home: Home, uri: str) -> Check:
    """Check the store at `uri` by opening it, but not a SQLite file that is missing: MLflow would create it."""
    file = _sqlite_file(uri)
    if file is None or file.is_file():
        return opened_store_check(home, uri)
    remedy = (
        "Correct the address; sqlite:////FOLDER/FILE has an absolute path. The first run creates the file."
    )
    return Check(name=_STORE, ok=False, found=f"{uri}: there is no file {file}", remedy=remedy)


def _sqlite_file(uri: str) -> Path | None:
    """The file of a SQLite store; None for any other store."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parts = make_url(uri)
    except (ArgumentError, ValueError):  # the check that opens the store explains what is wrong
        return None
    if parts.get_backend_name() != "sqlite" or parts.database in (None, "", ":memory:"):
        return None
    database = str(parts.database)
    return Path(unquote(database.removeprefix("file:")) if database.startswith("file:") else database)


def opened_store_check(home: Home, tracking_uri: str | None) -> Check:
    """Open the store with MLflow's own client, which also detects a store of another version.

    Lists the models and their held locks.
    """
    try:
        models = all_pages(connect(tracking_uri, home).search_registered_models)
    except EvergreenError as error:
        return Check(
            name="MLflow client",
            ok=False,
            found=str(error),
            remedy="Repair the store, or correct tracking.uri.",
        )
    listed = (
        ", ".join(f"{model.name} {json.dumps(dict(model.aliases))}" for model in models) or "no model yet"
    )
    held = [
        f"{model.name} by {claim.holder}"
        for model in models
        for claim in claims_in(dict(model.tags)).values()
        if claim.turn is None
    ]
    if not held:
        return Check(name="MLflow client", ok=True, found=listed)
    remedy = (
        f"If that process is gone, nothing needs to be done: the next registration waits {LEASE_S:g} s and removes the "
        "lock."
    )
    return Check(
        name="MLflow client", ok=None, found=f"{listed}; locked: {', '.join(sorted(held))}", remedy=remedy
    )


def _contents_check(file: Path, store: sqlite3.Connection) -> Check:
    searched = file.stat().st_size <= _SEARCHED_BYTES
    damage = store.execute("pragma quick_check(1)").fetchone()[0] if searched else "ok"
    if damage != "ok":
        raise sqlite3.DatabaseError(damage)
    models, versions = store.execute(_COUNTS).fetchone()
    unsearched = "" if searched else "; not checked for damage, because it is large"
    return Check(name=_STORE, ok=True, found=f"{models} models, {versions} versions{unsearched}")


def _unfinished(home: Home, run: RunningRun) -> Check:
    recipe = shlex.join(arguments_of_run(home, run.recipe, run.run_key))
    return Check(
        name=f"run of {run.recipe}",
        ok=None,
        found="RUNNING in MLflow, but no process of this home works on it",
        remedy=f"`evergreen retrain {recipe}`, with the same --set, resumes where it stopped.",
    )


def _runs(home: Home, recipe: str) -> bool:
    """Whether a process works on `recipe` now: such a process holds the recipe's lock until it ends."""
    file = lock_file(home, recipe)
    return file.is_file() and _is_held(file)


def _is_held(file: Path) -> bool:
    try:
        with FileLock(file, timeout=0):
            return False
    except Timeout:
        return True


def _lock_remedy() -> str:
    return f"Set {HOME_VARIABLE} to a folder on a disk of this machine: without locks, two runs could write one model."
