"""Fencing: a newer attempt of a run prevents older attempts from writing.

A worker that the driver has given up may still run for a minute, for example after its node lost the network or its
Ray controller died. So each write of a checkpoint, a metric point or the finished model first checks that its attempt
is still the newest.
"""

import os
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from training.attempts.history import read_attempts
from training.errors import TransientError
from training.storage.files import write_text
from training.storage.paths import RunPaths


class SupersededError(TransientError):
    """A newer attempt of the run, or a newer group of workers, has begun; this one must not write any more."""


class RivalDriverError(SupersededError):
    """A driver in another process trains the same run; this driver ends, or each would keep fencing out the other."""

    final = True


@dataclass(frozen=True)
class Fence:
    """Fencing token: only the newest attempt, and only its newest group of workers, may write.

    `file` holds the attempt's number, the group's number and the driver's name, as in `3.1 node7/4711/9f86d081`. The
    driver's name is empty in a file of an earlier version of Evergreen.
    """

    file: Path
    number: int
    group: int = 0
    driver: str = ""

    @classmethod
    def begin(cls, paths: RunPaths, driver: str = "", number: int | None = None) -> Self:
        """Start a new attempt as `driver`: from here on, all older attempts are fenced out.

        `number` is the attempt's number if it is known, else the next.
        """
        return cls(paths.fence, number or next_attempt(paths), driver=driver)._written()

    @classmethod
    def enter(cls, paths: RunPaths, number: int, driver: str = "") -> Self:
        """Start a group of workers, called by its first worker: the groups that Ray replaced are fenced out.

        Raises :class:`SupersededError` if the newest attempt is not attempt `number` of this driver.
        """
        newest, group, by = _read(paths.fence)
        if (newest, by) != (number, driver):
            raise SupersededError(
                f"attempt {number} of driver {driver or 'unknown'} was superseded by attempt {newest} of driver "
                f"{by or 'unknown'}"
            )
        return cls(paths.fence, number, group + 1, driver)._written()

    @classmethod
    def follow(cls, paths: RunPaths, number: int, group: int, driver: str) -> None:
        """Record the newest attempt and group of another machine, unless this machine's fence is as new."""
        if _read(paths.fence)[:2] < (number, group):
            cls(paths.fence, number, group, driver)._written()

    def _written(self) -> Self:
        write_text(self.file, f"{self.number}.{self.group} {self.driver}".strip())
        return self

    def check(self) -> None:
        """Raises :class:`SupersededError` if another attempt or group of workers began after this one."""
        now = _read(self.file)
        if now != (self.number, self.group, self.driver):
            newer = f"{now[0]}.{now[1]}{f' of driver {now[2]}' if now[2] else ''}"
            raise self._refused(f"{self.number}.{self.group}", newer if now[0] else "")

    def check_attempt(self) -> None:
        """Raises :class:`SupersededError` if another attempt began after this one; for ranks that enter no group."""
        if (newest := _read(self.file)[0]) != self.number:
            raise self._refused(f"{self.number}", f"{newest}" if newest else "")

    def _refused(self, attempt: str, newer: str) -> SupersededError:
        """The error of an `attempt` that may not write; `newer` is empty if the file does not name a newer attempt."""
        why = (
            f"was superseded by attempt {newer}"
            if newer
            else "writes nothing more: a newer group of workers began, or the driver or its disk does not answer"
        )
        return SupersededError(f"attempt {attempt} of the run in {self.file.parent} {why}")

    def check_driver(self) -> None:
        """Raises :class:`RivalDriverError` if another driver has begun an attempt since this attempt began."""
        number, _, driver = _read(self.file)
        if number >= self.number and driver != self.driver:
            raise RivalDriverError(
                f"Another process ({driver or 'of an earlier version'}) trains the run in {self.file.parent} as well: "
                f"attempt {number} belongs to that process, so this process ends. The lock that keeps runs of a recipe "
                "apart does not work on this file system, or was removed. Wait for the other process to end; "
                "then the same command resumes."
            )


def newest_attempt(paths: RunPaths) -> int:
    """The number of the newest attempt that has begun; 0 before the first."""
    return _read(paths.fence)[0]


def newest_driver(paths: RunPaths) -> str:
    """The name of the driver of the newest attempt that has begun; empty before the first."""
    return _read(paths.fence)[2]


def next_attempt(paths: RunPaths) -> int:
    """The number of the next attempt, from the files in the run's folder."""
    return max([_read(paths.fence)[0], *(attempt.number for attempt in read_attempts(paths))]) + 1


def new_driver() -> str:
    """A unique name for a driver: host, process id and a random part."""
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"


def _read(fence: Path) -> tuple[int, int, str]:
    """Attempt, group and driver; zeros and no driver if the file is missing, or a machine crash truncated it."""
    with suppress(OSError, ValueError):
        numbers, _, driver = fence.read_text(encoding="utf-8").partition(" ")
        number, _, group = numbers.partition(".")
        return int(number), int(group), driver
    return 0, 0, ""
