"""Empty databases of Prefect and MLflow: created once per installation, then copied into each new home.

Migrating an empty database takes 5 (Prefect) and 2 (MLflow) CPU seconds; a copy takes milliseconds. `make setup`
creates the databases under `<virtual environment>/share/evergreen/empty-stores` with the libraries' own commands. The
databases have tables, the revision of the migrations and the rows that migrations write, but no paths. Without a
database for the installed version, a library creates and migrates its database itself.
"""

import logging
import os
import sqlite3
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfile
from typing import NamedTuple

from training.storage.files import atomic_file, digest_file, digest_json
from training.telemetry import switch_off

log = logging.getLogger("evergreen.stores")

FOLDER = Path(sys.prefix) / "share" / "evergreen" / "empty-stores"
_FOREIGN = ("PREFECT_", "MLFLOW_")  # removed: such variables may point to the user's own databases
_SHOWN = 2000


class StoreKind(NamedTuple):
    """A library with a database: the migrations' folder in its package, and the command that creates a database."""

    package: str
    migrations: str
    command: Callable[[Path], list[str]]


PREFECT = StoreKind(
    "prefect",
    "server/database/_migrations/versions/sqlite",
    lambda _: ["-m", "prefect", "server", "database", "upgrade", "--yes"],
)
MLFLOW = StoreKind(
    "mlflow",
    "store/db_migrations/versions",
    lambda database: ["-m", "mlflow", "db", "upgrade", f"sqlite:///{database}"],
)


class MigrationError(Exception):
    """A library's command failed to create its database."""


def copy_empty(kind: StoreKind, target: Path) -> bool:
    """Copy an empty database to `target`, unless that file exists; returns whether this call created the file.

    Also returns False without an undamaged database for the installed version: the library then creates its own.
    """
    if target.exists() or (source := find(kind, FOLDER)) is None:
        return False
    aside = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        copyfile(source, aside)
        with aside.open("rb") as stream:
            os.fsync(stream.fileno())
        os.link(aside, target)  # unlike a rename, fails when another process has created the file meanwhile
    except OSError as error:
        log.debug("%s is not copied to %s (%s)", source, target, error)
        return False
    finally:
        aside.unlink(missing_ok=True)
    return True


def find(kind: StoreKind, folder: Path) -> Path | None:
    """The database of the installed version, if its content matches the digest in its file name; else None."""
    candidates = sorted(folder.glob(f"{_stem(kind)}-*.db"))
    return next((file for file in candidates if file.stem.endswith(_digest(file))), None)


def make_all(folder: Path) -> list[Path]:
    """Create the databases that `folder` lacks, both in parallel.

    Any number of processes may call this at once: each database appears atomically, with its digest in its name.
    Raises :class:`MigrationError`, and OSError when `folder` can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda kind: find(kind, folder) or _make(kind, folder), (PREFECT, MLFLOW)))


def _make(kind: StoreKind, folder: Path) -> Path:
    with tempfile.TemporaryDirectory(prefix=f".{kind.package}-", dir=folder) as aside:
        database = Path(aside) / f"{kind.package}.db"
        _migrate(kind, database)
        with closing(sqlite3.connect(database)) as store:
            store.execute("pragma wal_checkpoint(truncate)")  # move all pages into the file that is copied
        target = folder / f"{_stem(kind)}-{_digest(database)}.db"
        with atomic_file(target) as copied:
            copyfile(database, copied)
    return target


def _migrate(kind: StoreKind, database: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    environment["PREFECT_HOME"] = str(database.parent)  # where Prefect keeps `prefect.db`
    switch_off(environment)
    done = subprocess.run(
        [sys.executable, *kind.command(database)],
        env=environment,
        cwd=database.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or not database.is_file():
        output = (done.stderr or done.stdout).strip()[-_SHOWN:]
        raise MigrationError(
            f"{kind.package} did not create an empty database (status {done.returncode}): {output}"
        )


def _stem(kind: StoreKind) -> str:
    """File name stem for the installed version: version number and digest of the migrations' file names.

    The file name of a migration begins with its revision.
    """
    spec = find_spec(kind.package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    names = sorted(file.name for folder in folders for file in (Path(folder) / kind.migrations).glob("*.py"))
    return f"{kind.package}-{version(kind.package)}-{digest_json(names)[:12]}"


def _digest(file: Path) -> str:
    return digest_file(file)[:16]


def main() -> int:
    """Create the databases in this virtual environment; returns 0 even on failure, as they only save time."""
    try:
        for made in make_all(FOLDER):
            sys.stdout.write(f"{made.name}: the empty database with which new homes begin\n")
    except (MigrationError, OSError) as error:
        sys.stderr.write(f"New homes migrate their databases themselves, which takes longer: {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
