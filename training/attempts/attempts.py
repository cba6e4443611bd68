"""Attempts of a run: each start of the workers has a number, says what it did, and gives way to a newer one.

A worker that was given up for lost may live on for a minute: its node was cut off, its controller died. So every
commit, of a checkpoint, a metric point or the finished model, first looks whether its attempt is still the newest.
"""

import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from training.errors import TransientError
from training.records import Record
from training.storage.files import write_text
from training.storage.paths import RunPaths
from training.storage.record_files import DamagedError, append_record, read_lines, read_record, record_text


class SupersededError(TransientError):
    """A newer attempt of the run has begun; this one must not write any more."""


class RivalDriverError(SupersededError):
    """A driver in another process trains the same run; this one ends, or they would take the run from each other."""

    final = True


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


@dataclass(frozen=True)
class Fence:
    """Who may write: the newest attempt of the newest driver, and of that attempt the newest group of workers.

    The file holds both numbers and the driver, as in `3.1 node7/4711/9f86d081`. The driver is empty in a file of an
    earlier version of Evergreen.
    """

    file: Path
    number: int
    group: int = 0
    driver: str = ""

    @classmethod
    def begin(cls, paths: RunPaths, driver: str = "") -> Self:
        """`driver` starts a new attempt: from here on, all older ones are refused."""
        number = max([_read(paths.fence)[0], *(attempt.number for attempt in read_attempts(paths))]) + 1
        return cls(paths.fence, number, driver=driver)._written()

    @classmethod
    def enter(cls, paths: RunPaths, number: int, driver: str = "") -> Self:
        """The first worker starts: a group that Ray replaced by this one is refused from here on.

        Raises :class:`SupersededError` when another attempt than this driver's `number` has begun.
        """
        newest, group, by = _read(paths.fence)
        if (newest, by) != (number, driver):
            raise SupersededError(f"attempt {number} was given up; attempt {newest} goes on")
        return cls(paths.fence, number, group + 1, driver)._written()

    def _written(self) -> Self:
        write_text(self.file, f"{self.number}.{self.group} {self.driver}".strip())
        return self

    def check(self) -> None:
        """Raises :class:`SupersededError` when a newer attempt or group has begun."""
        now = _read(self.file)
        if now != (self.number, self.group, self.driver):
            raise SupersededError(
                f"attempt {self.number}.{self.group} of the run in {self.file.parent} was given up; "
                f"attempt {now[0]}.{now[1]} goes on"
            )

    def check_driver(self) -> None:
        """Raises :class:`RivalDriverError` when another driver has begun an attempt after this one."""
        number, _, driver = _read(self.file)
        if number >= self.number and driver != self.driver:
            raise RivalDriverError(
                f"Another process ({driver or 'of an earlier version'}) trains the run in {self.file.parent} as well: "
                f"attempt {number} is its own, so this process ends. The lock that keeps runs of a recipe apart "
                "does not work on this file system, or was removed. Wait for the other process to end; "
                "then the same command goes on."
            )


def new_driver() -> str:
    """A name for one driver: host, process and what no other driver has."""
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"


def _read(fence: Path) -> tuple[int, int, str]:
    """Attempt, group and driver; zeros when there are none, or a crash of the machine cut them short."""
    with suppress(OSError, ValueError):
        numbers, _, driver = fence.read_text(encoding="utf-8").partition(" ")
        number, _, group = numbers.partition(".")
        return int(number), int(group), driver
    return 0, 0, ""


def read_attempts(paths: RunPaths) -> list[Attempt]:
    """Starts of the loop so far, oldest first."""
    return read_lines(paths.attempts, Attempt, paths.root.name).undamaged()


def read_failures(paths: RunPaths) -> list[Failure]:
    """Failures so far, oldest first."""
    return read_lines(paths.failures, Failure, paths.root.name).undamaged()


def note(file: Path, record: Record) -> None:
    """Add a record to one of the two files, which lie in the run's folder."""
    append_record(file, record, file.parent.name)


class Beat(Record):
    """A worker's last sign of life after `step` steps; `gap_s` is the mean time between two.

    `started` is the start of its process, which tells it from a later one of equal pid.
    """

    attempt: int
    rank: int
    pid: int
    started: float
    host: str
    node: str
    step: int
    gap_s: float


@dataclass
class Heart:
    """Leaves a worker's sign of life in a file, at most one a second."""

    file: Path
    attempt: int
    rank: int
    node: str
    interval_s: float = 1.0
    _began: float = 0.0
    _beats: int = 0
    _written: float = 0.0
    _identity: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        import psutil

        self._identity = {
            "attempt": self.attempt,
            "rank": self.rank,
            "pid": os.getpid(),
            "started": psutil.Process().create_time(),
            "host": socket.gethostname(),
            "node": self.node,
        }
        self.file.parent.mkdir(parents=True, exist_ok=True)

    def beat(self, step: int) -> None:
        """`step` steps are done."""
        now = time.monotonic()
        self._beats += 1
        if self._beats <= 2:  # until the first step is done, all time is start-up
            self._began = now
        if now - self._written < self.interval_s:
            return
        self._written = now
        gap = (now - self._began) / max(1, self._beats - 2)
        beat = Beat.model_validate({**self._identity, "step": step, "gap_s": gap})
        aside = self.file.with_suffix(".tmp")
        aside.write_text(record_text(self.file.name, beat, _run_of(self.file)), encoding="utf-8")
        aside.replace(self.file)

    @contextmanager
    def kept_beating(self, step: int) -> Iterator[None]:
        """Signs of life from a thread, while the block waits for a disk or for others' disks."""
        done = threading.Event()

        def work() -> None:
            while not done.wait(self.interval_s):
                self.beat(step)

        thread = threading.Thread(target=work, name="evergreen-heart", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _run_of(beats: Path) -> str:
    """Name of the folder of the run whose sign of life lies in `beats`."""
    return beats.parent.parent.name


def furthest_step(paths: RunPaths) -> int:
    """The last step that a worker is known to have done; an attempt that begins forgets those before it."""
    return max((beat.step for beat in read_beats(paths)), default=0)


def read_beats(paths: RunPaths) -> list[Beat]:
    """The last sign of life of each worker, of whatever attempt."""
    found = []
    for file in sorted(paths.beats.glob("rank-*.json")):
        try:
            found.append(read_record(file, Beat, _run_of(file)))
        except (OSError, DamagedError):
            continue  # removed at this moment, or damaged: the next one comes in a second
    return found
