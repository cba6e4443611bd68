"""The optimizer steps and metric points that settings and rows imply, for comparison with those on record."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from training.data.sample_order import Rows, SampleOrder
from training.settings.schema import Settings
from training.trainers.accounting import metric_interval
from training.trainers.base import trainer_named


@dataclass(frozen=True)
class Steps:
    """Numbers of steps: of one epoch, of the whole training, and between two metric points.

    `thinned`: not every epoch has metric points. A boosting round of XGBoost is an epoch and a step, and only some of
    the rounds have points, which then hold the metrics of training and validation.
    """

    per_epoch: int
    total: int
    interval: int
    thinned: bool = False

    @classmethod
    def of(cls, settings: Settings, rows: int, world_size: int, epochs: int) -> Self:
        """The steps of `epochs` epochs, for `rows` training rows to learn from, on `world_size` workers."""
        trainer = trainer_named(settings.trainer)
        each = trainer.steps_per_epoch(settings, rows, world_size)
        whole = each * epochs
        total = min(whole, settings.max_steps or whole)
        thinned = trainer.promise(settings).resumes == "round"
        return cls(each, total, metric_interval(settings, each), thinned)

    @property
    def epoch_ends(self) -> list[int]:
        """Steps after which an epoch is validated; `training.max_steps` may cut the last epoch short."""
        return [*range(self.per_epoch, self.total, self.per_epoch), self.total]

    @property
    def metric_points(self) -> list[int]:
        """Steps after which training metrics are written."""
        return [step for step in range(1, self.total + 1) if self._is_point(step)]

    @property
    def validation_points(self) -> list[int]:
        """Steps after which validation metrics are written."""
        return self.metric_points if self.thinned else self.epoch_ends

    def _is_point(self, step: int) -> bool:
        if self.thinned:
            return step % self.interval == 0 or step == self.total
        in_epoch = (step - 1) % self.per_epoch + 1
        return in_epoch % self.interval == 0 or in_epoch == self.per_epoch or step == self.total

    def in_epoch(self, epoch: int) -> int:
        """Number of steps of `epoch` (1 for the first)."""
        return min(self.per_epoch, self.total - (epoch - 1) * self.per_epoch)


def rows_of_epoch(settings: Settings, learn: Rows, epoch: int, steps: int, order: SampleOrder) -> Rows:
    """The rows that the first `steps` steps of `epoch` (1 for the first) use with an exact feed.

    `order` is that of the rows `learn`, of which a whole epoch uses each once unless the order balances classes.
    """
    whole = trainer_named(settings.trainer).steps_per_epoch(settings, len(learn), 1)
    if steps == whole and not settings.training.balances_classes:
        return learn
    taken: Rows = learn[np.concatenate([order.global_batch(epoch - 1, step) for step in range(steps)])]
    return taken
