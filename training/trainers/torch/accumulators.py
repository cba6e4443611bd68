"""Accumulators of the training loop: seconds per part, losses and hits per interval and epoch, checksums of rows."""

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
    """Accumulates the seconds that each part of the loop takes, by the part's name."""

    parts: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add the block's exclusive time in seconds to `part`: time added to parts inside the block is subtracted."""
        booked, began = sum(self.parts.values()), time.perf_counter()
        try:
            yield
        finally:
            elsewhere = sum(self.parts.values()) - booked
            self.parts[part] = self.parts.get(part, 0.0) + time.perf_counter() - began - elsewhere


@dataclass
class Sums:
    """Sums of losses, hits and rows over some steps; `checksum` identifies the rows, whatever their order."""

    loss: float = 0.0
    hits: float = 0.0
    rows: float = 0.0
    checksum: float = 0.0

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(*map(sum, zip(astuple(self), astuple(other), strict=True)))


@dataclass
class Interval:
    """This worker's sums since the last metric point; tensors stay on the device until the next point."""

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
        """Share of the rows that this attempt computed; the sums of the other rows came from the checkpoint."""
        return 1 - self._carried / self.rows if self.rows else 1.0

    def add(self, losses: Any, hits: Any, rows: Rows) -> None:
        """Add one step: the sum of losses, the number of hits and the rows on this worker."""
        self.losses, self.hits = self.losses + losses, self.hits + hits
        self.rows, self.checksum = self.rows + len(rows), self.checksum + checksum(rows)

    def as_tensor(self, ranks: Ranks) -> Any:
        """The four sums (losses, hits, rows, checksum) as one float64 tensor on the rank's device."""
        import torch

        values = (self.losses, self.hits, self.rows, self.checksum)
        return torch.stack([torch.as_tensor(v, dtype=torch.float64, device=ranks.device) for v in values])


def metric_interval(settings: Settings, steps_per_epoch: int) -> int:
    """Steps between metric points: `tracking.log_every_steps`, by default a tenth of an epoch, from 1 to 50."""
    return settings.tracking.log_every_steps or max(
        1, min(_MOST_STEPS_A_POINT, steps_per_epoch // _POINTS_PER_EPOCH)
    )
