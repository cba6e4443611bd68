"""The optimizer steps and metric points that settings and rows imply, for comparison with those on record."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from training.data.sample_order import Rows, SampleOrder
from training.settings.schema import Settings
from training.trainers.torch.accumulators import metric_interval
from training.trainers.torch.feeds import local_batch_size


@dataclass(frozen=True)
class Steps:
    """Numbers of steps: of one epoch, of the whole training, and between two metric points."""

    per_epoch: int
    total: int
    interval: int

    @classmethod
    def of(cls, settings: Settings, rows: int, world_size: int) -> Self:
        """The steps for `rows` training rows to learn from, on `world_size` workers."""
        each = _per_epoch(settings, rows, world_size)
        whole = each * settings.training.epochs
        return cls(each, min(whole, settings.training.max_steps or whole), metric_interval(settings, each))

    @property
    def epoch_ends(self) -> list[int]:
        """Steps after which an epoch is validated; `training.max_steps` may cut the last epoch short."""
        return [*range(self.per_epoch, self.total, self.per_epoch), self.total]

    @property
    def metric_points(self) -> list[int]:
        """Steps after which training metrics are written."""
        return [step for step in range(1, self.total + 1) if self._is_point(step)]

    def _is_point(self, step: int) -> bool:
        in_epoch = (step - 1) % self.per_epoch + 1
        return in_epoch % self.interval == 0 or in_epoch == self.per_epoch or step == self.total

    def in_epoch(self, epoch: int) -> int:
        """Number of steps of `epoch` (1 for the first)."""
        return min(self.per_epoch, self.total - (epoch - 1) * self.per_epoch)


def _per_epoch(settings: Settings, rows: int, world_size: int) -> int:
    if settings.data.feed == "stream":  # each worker uses the whole batches of its share
        return rows // world_size // local_batch_size(settings)
    if settings.data.feed == "loader":  # each worker uses its whole share, padded to the largest share
        return math.ceil(math.ceil(rows / world_size) / local_batch_size(settings))
    return SampleOrder(rows, settings.training.global_batch_size, settings.seed).steps_per_epoch


def rows_of_epoch(settings: Settings, learn: Rows, epoch: int, steps: int) -> Rows:
    """The rows that the first `steps` steps of `epoch` (1 for the first) use with feed `memory`."""
    order = SampleOrder(len(learn), settings.training.global_batch_size, settings.seed)
    if steps == order.steps_per_epoch:
        return learn
    taken: Rows = learn[np.concatenate([order.global_batch(epoch - 1, step) for step in range(steps)])]
    return taken
