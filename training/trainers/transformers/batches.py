"""The batches that the Trainer of Transformers gets from Evergreen."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch  # noqa: TID253 - imported by processes that train

from training.checkpoints.checkpoint_log import Position
from training.data.sample_order import Rows
from training.errors import TrainingError
from training.trainers.network.feeds import MemoryFeed
from training.trainers.network.progress import Progress
from training.trainers.transformers.learner import Learner

# Names of what a pass has besides the arguments of the model. The Trainer would take the name `labels` for its own.
TARGETS, ROWS, WEIGHT = "evergreen_targets", "evergreen_rows", "evergreen_weight"
Pass = dict[str, Any]


class Batches:
    """Yields a dictionary for each forward and backward pass of this worker's steps: arguments, targets, row numbers.

    Each iteration is an epoch; the first begins at `start`.

    A step has `passes` passes, each with a part of the worker's rows. The Trainer accepts any iterable with a length as
    a data loader. `rows` is the number of rows of the newest step, on all workers.

    Raises :class:`TrainingError` if the last step of an epoch has too few rows for all passes.
    """

    def __init__(self, feed: MemoryFeed, learner: Learner, progress: Progress, start: Position, passes: int):
        self.feed, self.learner, self.clock = feed, learner, progress.clock
        self.start, self.passes, self.rows = start, passes, 0
        first, last = feed.order.bounds(feed.steps_per_epoch - 1)
        if last - first < passes * feed.ranks.world_size:
            raise TrainingError(
                f"training.gradient_accumulation_steps: the last step of an epoch has {last - first} rows for {passes} "
                f"passes on each of {feed.ranks.world_size} workers; use fewer passes, or another "
                "training.global_batch_size"
            )

    def __len__(self) -> int:
        return self.feed.steps_per_epoch * self.passes

    def __iter__(self) -> Iterator[Pass]:
        start, self.start = self.start, Position(self.start.epoch + 1, 0, 0)
        batches = self.feed.batches(start.epoch, start.step_in_epoch)
        while True:
            with self.clock.time("data wait"):
                batch = next(batches, None)
            if batch is None:
                return
            self.rows = batch.global_rows
            inputs = self.learner.inputs.augmented(batch.inputs, batch.rows, start.epoch)
            targets, rows = batch.targets.tensor_split(self.passes), np.array_split(batch.rows, self.passes)
            for own, wanted, numbers in zip(inputs.tensor_split(self.passes), targets, rows, strict=True):
                yield self._pass(own, wanted, numbers, batch.global_rows)

    def _pass(self, inputs: torch.Tensor, targets: torch.Tensor, rows: Rows, of: int) -> Pass:
        """A pass over some rows of a step with `of` rows on all workers.

        The sum of the losses times the weight gives the mean over the step: DDP averages over the workers.
        """
        weight = self.feed.ranks.world_size / of
        return self.learner.arguments(inputs) | {TARGETS: targets, ROWS: rows, WEIGHT: weight}
