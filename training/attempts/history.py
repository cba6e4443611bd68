"""The history of a run's attempts: which attempts began, how far training had come, and which ended early.

Each start of the workers is an attempt with an increasing number.
"""

from pathlib import Path

from training.records import Record
from training.storage.paths import RunPaths
from training.storage.record_files import append_record, read_lines


class Attempt(Record):
    """One start of the loop, told by its first worker; `began` and `ready` are seconds since 1970.

    `number` counts the driver's attempts, `group` the times that Ray started its workers, to change how many they are.
    Training entered at `first_step`; `reached` is the step that was known to be done before, so that
    `reached - first_step` steps were computed twice.
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
    """The end of an attempt before its time."""

    number: int
    at: float
    error: str


def read_attempts(paths: RunPaths) -> list[Attempt]:
    """Starts of the loop so far, oldest first."""
    return read_lines(paths.attempts, Attempt, paths.root.name).undamaged()


def read_failures(paths: RunPaths) -> list[Failure]:
    """Failures so far, oldest first."""
    return read_lines(paths.failures, Failure, paths.root.name).undamaged()


def note(file: Path, record: Record) -> None:
    """Add a record to one of the two files, which lie in the run's folder."""
    append_record(file, record, file.parent.name)
