"""Accumulators of the training loop: sums of losses and metrics per interval and epoch, and checksums of rows."""

import time
from dataclasses import astuple, dataclass, field
from typing import Any

from training.data.sample_order import Rows, checksum
from training.trainers.ranks import Ranks


@dataclass
class Sums:
    """Sums of losses, metrics and rows over some steps; `checksum` identifies the rows, whatever their order.

    `scores` is the sum from which :meth:`training.problems.objectives.Objective.reduced` computes the metric: hits, or
    squared errors.
    """

    loss: float = 0.0
    scores: float = 0.0
    rows: float = 0.0
    checksum: float = 0.0

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(*map(sum, zip(astuple(self), astuple(other), strict=True)))


@dataclass
class Interval:
    """This worker's sums since the last metric point; tensors stay on the device until the next point."""

    losses: Any = 0.0
    scores: Any = 0
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

    def add(self, losses: Any, scores: Any, rows: Rows) -> None:
        """Add one step: the sums of losses and of the metric, and the rows, on this worker."""
        self.losses, self.scores = self.losses + losses, self.scores + scores
        self.rows, self.checksum = self.rows + len(rows), self.checksum + checksum(rows)

    def as_tensor(self, ranks: Ranks) -> Any:
        """The four sums (losses, scores, rows, checksum) as one float64 tensor on the rank's device."""
        import torch

        values = (self.losses, self.scores, self.rows, self.checksum)
        return torch.stack([torch.as_tensor(v, dtype=torch.float64, device=ranks.device) for v in values])
