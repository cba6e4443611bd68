"""History of a run's attempts: which attempts started, at which step, and which failed.

Each time the driver starts the workers, the attempt number increases; a newer attempt fences out older attempts.
"""

from pathlib import Path

from training.records import Record
from training.storage.paths import RunPaths
from training.storage.record_files import append_record, read_lines


class Attempt(Record):
    """One start of the training loop, recorded by its first worker; `began` and `ready` are seconds since 1970.

    `number` is the attempt's number in the run. `group` counts the worker groups within the attempt: Ray starts a new
    group to change the number of workers. Training started at `first_step`; `reached` is the last step that workers
    had reported before, so `reached - first_step` steps were computed twice.
    """

    number: int
    group: int
    began: float
    ready: float
    world_size: int
    device: str
    first_step: int
    reached: int


class Failure(Record):
    """An attempt that ended before the model was finished; `at` is in seconds since 1970."""

    number: int
    at: float
    error: str


def read_attempts(paths: RunPaths) -> list[Attempt]:
    """Starts of the training loop so far, oldest first; damaged records are left out with a warning."""
    return read_lines(paths.attempts, Attempt, paths.root.name).undamaged()


def read_failures(paths: RunPaths) -> list[Failure]:
    """Failures so far, oldest first; damaged records are left out with a warning."""
    return read_lines(paths.failures, Failure, paths.root.name).undamaged()


def note(file: Path, record: Record) -> None:
    """Append a record to `file`: the run's file of attempts or of failures."""
    append_record(file, record, file.parent.name)
