"""What the loop adds up: seconds by part, losses and hits by interval and epoch, and which rows were used."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from typing import Any

from training.data.sample_order import Rows, checksum
from training.settings.schema import Settings
from training.trainers.torch.ranks import Ranks

_POINTS_PER_EPOCH, _MOST_STEPS_A_POINT = 10, 50


@dataclass
class Clock:
    """Seconds by part of the loop."""

    parts: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add the block's seconds to `part`, but for those that are booked to others inside it."""
        booked, began = sum(self.parts.values()), time.perf_counter()
        try:
            yield
        finally:
            elsewhere = sum(self.parts.values()) - booked
            self.parts[part] = self.parts.get(part, 0.0) + time.perf_counter() - began - elsewhere


@dataclass
class Sums:
    """Loss, hits and rows of some steps; `checksum` tells which rows they were."""

    loss: float = 0.0
    hits: float = 0.0
    rows: float = 0.0
    checksum: float = 0.0

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(*map(sum, zip(astuple(self), astuple(other), strict=True)))


@dataclass
class Interval:
    """This worker's sums since the last metric point; tensors stay on the device until then."""

    losses: Any = 0.0
    hits: Any = 0
    rows: int = 0
    checksum: int = 0
    waited_before: float = 0.0  # seconds of data wait when the interval began
    began: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self._carried = self.rows

    @property
    def share_here(self) -> float:
        """Share of the rows that this attempt computed itself; the others' sums came with a checkpoint."""
        return 1 - self._carried / self.rows if self.rows else 1.0

    def add(self, losses: Any, hits: Any, rows: Rows) -> None:
        """Count a step: sum of its losses, its hits, and its rows on this worker."""
        self.losses, self.hits = self.losses + losses, self.hits + hits
        self.rows, self.checksum = self.rows + len(rows), self.checksum + checksum(rows)

    def as_tensor(self, ranks: Ranks) -> Any:
        """The four sums as one float64 tensor on the rank's device."""
        import torch

        values = (self.losses, self.hits, self.rows, self.checksum)
        return torch.stack([torch.as_tensor(v, dtype=torch.float64, device=ranks.device) for v in values])


def metric_interval(settings: Settings, steps_per_epoch: int) -> int:
    """Steps between two metric points of an epoch."""
    return settings.tracking.log_every_steps or max(
        1, min(_MOST_STEPS_A_POINT, steps_per_epoch // _POINTS_PER_EPOCH)
    )
