"""Metric points of a run: an append-only file beside the checkpoints, with each (name, step) once.

Only the first worker writes the file; any process may read it. A resumed training removes the points after the step
from which it resumes and writes them again with equal values, so readers see no gap and no duplicate.
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

# The metrics that every trainer writes, with the name of the problem's metric in place of {metric}. `evergreen verify`
# looks for them.
AT_INTERVALS = ("train/loss", "train/{metric}", "train/learning_rate", "speed/data_wait_share")
# At intervals, too: the first of images, the other of other rows.
SPEEDS = {"speed/images_per_s", "speed/rows_per_s"}
AT_EPOCH_ENDS = ("validation/loss", "validation/{metric}", "epoch")


class Point(Record):
    """Metric values after optimizer step `step` of `total_steps`; `at` is the time in seconds since 1970.

    The last point of a training that ends early has the number of steps that were done as `total_steps`.
    """

    step: int
    total_steps: int
    epoch: int
    at: float
    values: dict[str, float]


@dataclass(frozen=True)
class MetricsFile:
    """The metric points of one run, in the file `path`."""

    path: Path
    total_steps: int = 0
    fence: Fence | None = None  # of the attempt that writes; None for readers

    def rewind(self, step: int) -> None:
        """Remove all points after `step`. Before, :meth:`has_all` must have confirmed the points up to `step`.

        Raises :class:`training.attempts.fence.SupersededError` if this attempt may not write any more.
        """
        if self.fence is not None:
            self.fence.check()
        lines = self.lines()
        if lines.damage:
            set_aside(self.path, f"{lines.damage}; the points after step {step} are computed again")
        sound = lines.records[: lines.sound]
        write_records(self.path, [point for point in sound if point.step <= step], self._run)

    def has_all(self, step: int, count: int | None) -> bool:
        """Whether all points up to `step` are present and undamaged; `count` is their number, None if not known."""
        lines = self.lines()
        sound = lines.records[: lines.sound]
        if count is not None:
            return len(sound) >= count
        return not lines.damage or bool(sound and sound[-1].step > step)

    def check(self) -> None:
        """Raises :class:`TransientError` if points are damaged: the next attempt computes them again."""
        if damage := self.lines().damage:
            raise TransientError(
                f"{self.path}: damaged ({damage}); the points from there on are computed again."
            )

    def count(self) -> int:
        """Number of points written, damaged ones included."""
        return count_lines(self.path, self._run)

    def sync(self) -> None:
        """Sync all points to disk, so that they are as durable as the checkpoint committed after them."""
        if self.path.is_file():
            with self.path.open("rb") as stream:
                os.fsync(stream.fileno())

    def append(self, step: int, epoch: int, values: dict[str, float], at: float | None = None) -> None:
        """Add a point; `at` is the time of the step's end in seconds since 1970, by default now.

        Raises :class:`TrainingError` if a value is not a finite number, and
        :class:`training.attempts.fence.SupersededError` if this attempt may not write any more.
        """
        for name, value in values.items():
            if not math.isfinite(value):
                raise TrainingError(
                    f"{name} became {value} at step {step} (epoch {epoch}): training diverged. Lower "
                    "training.learning_rate, set training.clip_norm, or use training.precision=float32."
                )
        if self.fence is not None:
            self.fence.check()
        at = time.time() if at is None else at
        point = Point(step=step, total_steps=self.total_steps, epoch=epoch, at=at, values=values)
        append_record(self.path, point, self._run)

    def read(self) -> list[Point]:
        """All points in order; damaged points are left out with a warning."""
        return self.lines().undamaged()

    def lines(self) -> Lines[Point]:
        """The points, with a description of the damage if the file is damaged."""
        return read_lines(self.path, Point, self._run)

    def tail(self) -> LineTail[Point]:
        """A reader that polls the file: it returns each point once, first the existing points and then new ones."""
        return LineTail(self.path, Point, self._run)

    @property
    def _run(self) -> str:
        """Name of the run's folder."""
        return self.path.parent.name
