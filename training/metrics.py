"""Metric points of a run: an append-only file beside the checkpoints, each (name, step) once.

The first worker writes, anyone may read. A resumed training drops the points after the step it resumes from and
writes them again with equal values, so readers never see a gap or a double.
"""

import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.attempts import Fence
from training.errors import TrainingError
from training.files import append_line, write_text
from training.records import Record


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
        """Forget all points after `step`."""
        if self.fence is not None:
            self.fence.check()
        kept = [point.model_dump_json() + "\n" for point in self.read() if point.step <= step]
        write_text(self.path, "".join(kept))

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
        append_line(self.path, point.model_dump_json())

    def read(self) -> list[Point]:
        """All points in order; a last line that a crash cut short is left out."""
        if not self.path.is_file():
            return []
        points = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                fields: dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            points.append(Point.model_validate(fields))
        return points
