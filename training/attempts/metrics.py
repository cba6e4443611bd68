"""Metric points of a run: an append-only file beside the checkpoints, each (name, step) once.

The first worker writes, anyone may read. A resumed training drops the points after the step it resumes from and
writes them again with equal values, so readers never see a gap or a double.
"""

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

from training.attempts.fence import Fence
from training.errors import TrainingError, TransientError
from training.records import Record
from training.storage.line_tail import LineTail
from training.storage.record_files import (
    Lines,
    append_record,
    count_lines,
    read_lines,
    set_aside,
    write_records,
)


class Point(Record):
    """Values at one optimizer step (`step` of `total_steps` done); `at` is the clock in seconds since 1970."""

    step: int
    total_steps: int
    epoch: int
    at: float
    values: dict[str, float]


@dataclass(frozen=True)
class MetricsFile:
    """Points of one run, in `path`."""

    path: Path
    total_steps: int = 0
    fence: Fence | None = None  # of the attempt that writes; readers need none

    def rewind(self, step: int) -> None:
        """Forget all points after `step`; :meth:`has_all` has said that those up to it are sound."""
        if self.fence is not None:
            self.fence.check()
        found = self.lines()
        if found.damage:
            set_aside(self.path, f"{found.damage}; the points after step {step} are computed again")
        sound = found.records[: found.sound]
        write_records(self.path, [point for point in sound if point.step <= step], self._run)

    def has_all(self, step: int, count: int | None) -> bool:
        """Whether all points up to `step` are there and undamaged; `count` is their number, where it is known."""
        found = self.lines()
        sound = found.records[: found.sound]
        if count is not None:
            return len(sound) >= count
        return not found.damage or bool(sound and sound[-1].step > step)

    def check(self) -> None:
        """Raises :class:`TransientError` when points are damaged: the next attempt computes them again."""
        if damage := self.lines().damage:
            raise TransientError(
                f"{self.path}: damaged ({damage}); the points from there on are computed again."
            )

    def count(self) -> int:
        """Number of points that were written."""
        return count_lines(self.path, self._run)

    def sync(self) -> None:
        """Make all points durable, as a checkpoint that comes after them will be."""
        if self.path.is_file():
            with self.path.open("rb") as stream:
                os.fsync(stream.fileno())

    def append(self, step: int, epoch: int, values: dict[str, float]) -> None:
        """Add a point. Raises :class:`TrainingError` when a value is not a finite number."""
        for name, value in values.items():
            if not math.isfinite(value):
                raise TrainingError(
                    f"{name} became {value} at step {step} (epoch {epoch}): training diverged. Lower "
                    "training.learning_rate, set training.clip_norm, or use training.precision=float32."
                )
        if self.fence is not None:
            self.fence.check()
        point = Point(step=step, total_steps=self.total_steps, epoch=epoch, at=time.time(), values=values)
        append_record(self.path, point, self._run)

    def read(self) -> list[Point]:
        """All points in order, damaged ones left out with a warning."""
        return self.lines().undamaged()

    def lines(self) -> Lines[Point]:
        """The points, and what is wrong with the file."""
        return read_lines(self.path, Point, self._run)

    def tail(self) -> LineTail[Point]:
        """A reader of the points that are still to come."""
        return LineTail(self.path, Point, self._run)

    @property
    def _run(self) -> str:
        """Name of the run's folder."""
        return self.path.parent.name
