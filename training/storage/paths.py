"""The one place that names paths. Everything Evergreen keeps lies under one folder, `EVERGREEN_HOME`."""

import os
import re
import secrets
import shutil
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
# The two embedded databases alone take 5 MB; the rest leaves room for a model and its checkpoints.
_NEEDED_BYTES = 100_000_000
_IDENTITY = "[0-9a-f]{16}"
_REMEDY = (
    "Restore it from a backup, or replace its content by the 16 characters that MLflow shows as tag evergreen.home of "
    "this home's runs. If no other home uses the same MLflow store or Prefect server, remove it: a new one is made."
)


class HomeIdentity(Record):
    """The content of `home-id`."""

    identity: str = Field(pattern=f"^{_IDENTITY}$")


@dataclass(frozen=True)
class RunPaths:
    """What one retraining run keeps, under its run key."""

    root: Path

    @property
    def ingredients(self) -> Path:
        """The four ingredients of the run key and the resolved settings, as JSON."""
        return self.root / "ingredients.json"

    @property
    def recipe(self) -> Path:
        """The recipe's source as it was hashed; workers load this copy."""
        return self.root / "recipe"

    @property
    def checkpoints(self) -> Path:
        """One folder a checkpoint."""
        return self.root / "checkpoints"

    @property
    def metrics(self) -> Path:
        """Metric points, one JSON object a line, each (name, step) once."""
        return self.root / "metrics.jsonl"

    @property
    def attempts(self) -> Path:
        """Starts of the training loop, one JSON object a line."""
        return self.root / "attempts.jsonl"

    @property
    def failures(self) -> Path:
        """Attempts that failed, and why, one JSON object a line."""
        return self.root / "failures.jsonl"

    @property
    def fence(self) -> Path:
        """Number of the newest attempt; older ones must not write."""
        return self.root / "fence"

    @property
    def replay(self) -> Path:
        """What a replay of steps from the first checkpoint showed; see :mod:`training.trainers.torch.replay`."""
        return self.root / "replay.json"

    @property
    def beats(self) -> Path:
        """Last signs of life of the workers."""
        return self.root / "beats"

    @property
    def logs(self) -> Path:
        """What the workers said, one JSON object a line."""
        return self.root / "logs"

    @property
    def stacks(self) -> Path:
        """Stacks of workers that were found stuck."""
        return self.root / "stacks"

    @property
    def stop(self) -> Path:
        """While this file is there, the workers save a checkpoint and end."""
        return self.root / "stop"

    @property
    def save(self) -> Path:
        """The first worker that sees this file removes it and saves a checkpoint: a node is about to go."""
        return self.root / "save"

    @property
    def model(self) -> Path:
        """The finished training: weights and `trained.json`; appears complete or not at all."""
        return self.root / "model"

    @property
    def evaluation(self) -> Path:
        """Predictions and scores on the test rows."""
        return self.root / "evaluation"

    @property
    def figures(self) -> Path:
        """Pictures for MLflow and Prefect."""
        return self.root / "figures"

    @property
    def report(self) -> Path:
        """The report page."""
        return self.root / "report.html"

    @property
    def release(self) -> Path:
        """The outcome; written last."""
        return self.root / "release.json"

    @property
    def ray(self) -> Path:
        """Ray Train's own folder."""
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
        """Raw rows as Parquet, `<name>/<fingerprint>`; may be deleted while no run is active."""
        return self.root / "raw"

    def raw_rows(self, name: str, fingerprint: str) -> Path:
        """Folder of the raw rows that one dataset version is made of."""
        return self.raw / name / fingerprint[:16]

    @property
    def datasets(self) -> Path:
        """Immutable dataset versions, `<name>/<fingerprint>`."""
        return self.root / "datasets"

    @property
    def mlflow_uri(self) -> str:
        """Tracking URI of the embedded MLflow store."""
        # Without a driver's name MLflow takes all of an URI for a path, and makes folders of it.
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
        """Home of the Prefect server that a local run brings along."""
        return self.root / "prefect"

    @property
    def registered(self) -> Path:
        """Digests of the models that this home registered, `<store>/<model>/<version>`."""
        return self.root / "registered"

    @property
    def locks(self) -> Path:
        """Lock files; the operating system frees a lock when its holder dies."""
        return self.root / "locks"

    @property
    def identity(self) -> str:
        """Random name of this installation, made when first asked for; it moves with the folder.

        In stores that several homes share, it tells this home's runs from others': two machines may well have
        their homes at the same path. Raises :class:`DamagedError` when it is damaged and runs are known by it.
        """
        file = self.root / "home-id"
        try:
            return _read_identity(file)
        except (FileNotFoundError, DamagedError):
            self.locks.mkdir(parents=True, exist_ok=True)
        with FileLock(self.locks / "home-id.lock"):
            try:
                return _read_identity(file)  # another process has just made it
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
        """CSV file that lists all rows for which a dataset version was refused."""
        return self.root / "refused" / name / f"{fingerprint[:16]}.csv"

    def runs(self, recipe: str) -> Path:
        """All runs of a recipe."""
        return self.root / "runs" / recipe

    def run(self, recipe: str, run_key: str) -> RunPaths:
        """Paths of the run with `run_key` (its first 16 hex digits name the folder)."""
        return RunPaths(self.runs(recipe) / run_key[:16])


def _read_identity(file: Path) -> str:
    """The name in `home-id`: a record, or of an earlier version the name alone."""
    text = file.read_text(encoding="utf-8", errors="replace").strip()
    return (
        text if re.fullmatch(_IDENTITY, text) else read_record(file, HomeIdentity, "home", _REMEDY).identity
    )


def sqlite_url(file: Path, driver: str) -> str:
    """SQLAlchemy's URL of a SQLite file. A question mark, which would begin its options, makes it SQLite's own URI."""
    return f"{driver}:///" + (f"file:{quote(str(file))}?uri=true" if "?" in str(file) else str(file))


def home_to_read() -> Home:
    """:func:`home` for a command that changes nothing: the folder is neither made nor tried."""
    return Home(Path(os.environ.get(HOME_VARIABLE) or ".evergreen").expanduser().resolve())


def home() -> Home:
    """The home that the environment names, by default `.evergreen` in the working directory.

    Raises :class:`ResourceError` when it cannot be made or written, or its disk is nearly full.
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
        probe.unlink()
    except OSError as error:
        raise ResourceError(
            f"{root} is not writable ({error.strerror}). Point {HOME_VARIABLE} to a folder that is, "
            "or fix its permissions or free space."
        ) from error
    if (free := shutil.disk_usage(root).free) < _NEEDED_BYTES:
        raise ResourceError(
            f"{root}: {free / 1e6:.0f} MB are free, a run needs at least {_NEEDED_BYTES / 1e6:.0f} MB. Free some, or "
            f"point {HOME_VARIABLE} to another disk."
        )
    return Home(root)
