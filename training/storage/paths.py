"""Paths of all files that Evergreen keeps. All of them lie under one folder, `EVERGREEN_HOME`."""

import os
import re
import secrets
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from filelock import FileLock
from pydantic import Field

from training.errors import ResourceError
from training.records import Record
from training.storage.record_files import DamagedError, read_record, set_aside, write_record

HOME_VARIABLE = "EVERGREEN_HOME"
TRAINED = "trained.json"  # in a run's folder `model`
# The two embedded databases alone take 5 MB; the rest is for a model and its checkpoints.
_NEEDED_BYTES = 100_000_000
_IDENTITY = "[0-9a-f]{16}"
_REMEDY = (
    "Restore it from a backup, or replace its content by the 16 characters that MLflow shows as tag evergreen.home of "
    "this home's runs. If no other home uses the same MLflow store or Prefect server, remove it: a new one is made."
)


class HomeIdentity(Record):
    """The content of the file `home-id`."""

    identity: str = Field(pattern=f"^{_IDENTITY}$")


@dataclass(frozen=True)
class RunPaths:
    """Paths of the files of one retraining run; `root` is named after its run key."""

    root: Path

    @property
    def ingredients(self) -> Path:
        """The run's plan as JSON, with the ingredients of the run key and the resolved settings."""
        return self.root / "ingredients.json"

    @property
    def recipe(self) -> Path:
        """The recipe's source as it was hashed; workers load this copy."""
        return self.root / "recipe"

    @property
    def initial(self) -> Path:
        """Folder with the copy of the initial weights; missing in a run that starts from new weights."""
        return self.root / "initial"

    @property
    def initial_weights(self) -> Path:
        """Copy of the weights that the training starts from."""
        return self.initial / "weights.safetensors"

    @property
    def initial_rows(self) -> Path:
        """Digests of the rows that those weights were trained on; missing if the rows are not known."""
        return self.initial / "training_rows.npy"

    @property
    def checkpoints(self) -> Path:
        """Folder with one folder per checkpoint."""
        return self.root / "checkpoints"

    @property
    def metrics(self) -> Path:
        """Metric points, one JSON object per line; each (name, step) occurs once."""
        return self.root / "metrics.jsonl"

    @property
    def attempts(self) -> Path:
        """Starts of the training loop, one JSON object per line."""
        return self.root / "attempts.jsonl"

    @property
    def failures(self) -> Path:
        """Failed attempts and their errors, one JSON object per line."""
        return self.root / "failures.jsonl"

    @property
    def fence(self) -> Path:
        """The newest attempt, its group of workers and its driver; older attempts and groups must not write."""
        return self.root / "fence"

    @property
    def replay(self) -> Path:
        """Result of a replay of steps from the first checkpoint; see :mod:`training.trainers.own_loop.replay`."""
        return self.root / "replay.json"

    @property
    def beats(self) -> Path:
        """The last heartbeat of each worker, one file per rank."""
        return self.root / "beats"

    @property
    def logs(self) -> Path:
        """Logs of the workers, one file per rank with one JSON object per line."""
        return self.root / "logs"

    @property
    def stacks(self) -> Path:
        """Thread stacks of stuck workers, one file per rank."""
        return self.root / "stacks"

    @property
    def stop(self) -> Path:
        """Request to stop: while this file exists, the workers save a checkpoint and end."""
        return self.root / "stop"

    @property
    def save(self) -> Path:
        """Request for a checkpoint while a node is being drained; the first worker (rank 0) removes this file."""
        return self.root / "save"

    @property
    def model(self) -> Path:
        """The finished training, weights and `trained.json`; this folder is complete when it exists."""
        return self.root / "model"

    @property
    def evaluation(self) -> Path:
        """Predictions and scores on the test rows."""
        return self.root / "evaluation"

    @property
    def figures(self) -> Path:
        """Figures for MLflow and Prefect."""
        return self.root / "figures"

    @property
    def data_check(self) -> Path:
        """Comparison of the dataset with the champion's; missing before the dataset is prepared."""
        return self.root / "data.json"

    @property
    def report(self) -> Path:
        """The report page."""
        return self.root / "report.html"

    @property
    def release(self) -> Path:
        """The run's release record, which is written last."""
        return self.root / "release.json"

    @property
    def ray(self) -> Path:
        """Folder for Ray Train's own files."""
        return self.root / "ray"


@dataclass(frozen=True)
class Home:
    """The folder that holds all state; two empty homes are two independent installations."""

    root: Path

    @property
    def sources(self) -> Path:
        """Downloaded and unpacked source files."""
        return self.root / "sources"

    @property
    def raw(self) -> Path:
        """Raw rows as Parquet, in `<name>/<fingerprint>`; may be deleted while no run is active."""
        return self.root / "raw"

    def raw_rows(self, name: str, fingerprint: str) -> Path:
        """Folder of the raw rows from which a dataset version is prepared."""
        return self.raw / name / fingerprint[:16]

    @property
    def datasets(self) -> Path:
        """Immutable dataset versions, in `<name>/<fingerprint>`."""
        return self.root / "datasets"

    @property
    def mlflow_uri(self) -> str:
        """Tracking URI of the embedded MLflow store."""
        # MLflow takes a URI with a `?` for a path, and creates folders, unless the URI names the driver.
        return sqlite_url(self.mlflow_file, "sqlite" if "?" not in str(self.root) else "sqlite+pysqlite")

    @property
    def mlflow_file(self) -> Path:
        """The embedded MLflow store."""
        return self.root / "mlflow.db"

    @property
    def mlflow_artifacts(self) -> Path:
        """Artifacts of the embedded MLflow store."""
        return self.root / "mlflow-artifacts"

    @property
    def prefect(self) -> Path:
        """Home of the Prefect server that a local run starts."""
        return self.root / "prefect"

    @property
    def registered(self) -> Path:
        """Digests of the models that this home registered, in `<store>/<model>/<version>`."""
        return self.root / "registered"

    @property
    def locks(self) -> Path:
        """Lock files; the operating system frees a lock when its holder dies."""
        return self.root / "locks"

    @property
    def identity(self) -> str:
        """Random name of this installation, created at first use; it moves with the folder.

        In stores that several homes share, the name distinguishes the runs of this home from those of other homes:
        two machines may have their homes at the same path. Raises :class:`DamagedError` when the name is damaged and
        this home has runs; without runs, a new name replaces a damaged name.
        """
        file = self.root / "home-id"
        try:
            return _read_identity(file)
        except (FileNotFoundError, DamagedError):
            self.locks.mkdir(parents=True, exist_ok=True)
        with FileLock(self.locks / "home-id.lock"):
            try:
                return _read_identity(file)  # another process may have created it meanwhile
            except DamagedError as error:
                if any(self.runs("").glob("*/*")):
                    raise
                set_aside(file, error.what)
            except FileNotFoundError:
                pass
            made = HomeIdentity(identity=secrets.token_hex(8))
            write_record(file, made, "home")
            return made.identity

    def dataset(self, name: str, fingerprint: str) -> Path:
        """Folder of one dataset version."""
        return self.datasets / name / fingerprint[:16]

    def refused_rows(self, name: str, fingerprint: str) -> Path:
        """CSV file that lists all bad rows, for which a dataset version was refused."""
        return self.root / "refused" / name / f"{fingerprint[:16]}.csv"

    def runs(self, recipe: str) -> Path:
        """Folder of all runs of a recipe."""
        return self.root / "runs" / recipe

    def searches(self, recipe: str) -> Path:
        """Folder of all searches of a recipe."""
        return self.root / "searches" / recipe

    def search(self, recipe: str, key: str) -> Path:
        """Folder of the search with `key`: its record and its picture."""
        return self.searches(recipe) / key[:16]

    def run(self, recipe: str, run_key: str) -> RunPaths:
        """Paths of the run with `run_key` (its first 16 hex digits name the folder)."""
        return RunPaths(self.runs(recipe) / run_key[:16])


def _read_identity(file: Path) -> str:
    """The name in the file `home-id`, which is a record, or the plain name that earlier versions wrote.

    Raises :class:`DamagedError`, and FileNotFoundError when there is no file.
    """
    text = file.read_text(encoding="utf-8", errors="replace").strip()
    return (
        text if re.fullmatch(_IDENTITY, text) else read_record(file, HomeIdentity, "home", _REMEDY).identity
    )


def sqlite_url(file: Path, driver: str) -> str:
    """SQLAlchemy's URL of a SQLite file.

    A path with a `?`, which would begin the URL's options, becomes a `file:` URI of SQLite.
    """
    return f"{driver}:///" + (f"file:{quote(str(file))}?uri=true" if "?" in str(file) else str(file))


def is_key_name(name: str) -> bool:
    """Whether a folder's name is the beginning of a key or fingerprint, as the names of runs, datasets, searches are.

    Folders with other names are not Evergreen's: a cache, a store or a home may be in a folder that holds other data.
    """
    return re.fullmatch("[0-9a-f]{16}", name) is not None


def home_to_read() -> Home:
    """The same as :func:`home_to_write`, for a command that changes nothing: neither creates the folder nor tests it.

    A `~` at the beginning is a user's home directory, also where no shell has replaced it, as in a file of variables.
    Raises :class:`ResourceError` when there is no such user, and when the working folder is gone.
    """
    named = os.environ.get(HOME_VARIABLE) or ".evergreen"
    try:
        return Home(Path(named).expanduser().resolve())
    except RuntimeError as error:
        raise ResourceError(f"{HOME_VARIABLE}={named}: {error} Write the whole path of the folder.") from None
    except FileNotFoundError:
        raise ResourceError(
            f"{HOME_VARIABLE}={named}: the working folder, to which this path is relative, does not exist any more. "
            "Change to another folder, or write the whole path."
        ) from None


def home_to_write(for_run: bool = True) -> Home:
    """The home that the variable EVERGREEN_HOME names, by default `.evergreen` in the working directory.

    Creates the folder. Raises :class:`ResourceError` when it cannot be created or written, when its path is not
    UTF-8, or, `for_run`, when its disk has too little space for a run.
    """
    root = home_to_read().root
    try:
        str(root).encode()
    except UnicodeEncodeError:
        raise ResourceError(
            f"{root!r}: its name is not UTF-8. Point {HOME_VARIABLE} to another folder."
        ) from None
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe = root / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink(missing_ok=True)  # another container may have a process with this id
    except OSError as error:
        raise ResourceError(
            f"{root} is not writable ({error.strerror}). Point {HOME_VARIABLE} to a folder that is, "
            "or fix its permissions or free space."
        ) from error
    if for_run and (free := shutil.disk_usage(root).free) < _NEEDED_BYTES:
        raise ResourceError(
            f"{root}: {free / 1e6:.0f} MB are free, a run needs at least {_NEEDED_BYTES / 1e6:.0f} MB. Free some, or "
            f"point {HOME_VARIABLE} to another disk."
        )
    return Home(root)


def newest_first(runs: Path, name: str) -> list[Path]:
    """The files `name` in the folders of the runs in `runs`, newest first; not those of runs that are being removed."""
    dated_files = []
    for file in runs.glob(f"*/{name}"):
        with suppress(FileNotFoundError):  # `evergreen gc` removed the run meanwhile
            if not file.parent.name.startswith("."):
                dated_files.append((file.stat().st_mtime_ns, file))
    return [file for _, file in sorted(dated_files, reverse=True)]
