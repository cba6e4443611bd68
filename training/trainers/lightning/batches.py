"""The batches that Lightning's Trainer gets from Evergreen."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch  # noqa: TID253 - imported by processes that train

from training.checkpoints.checkpoint_log import Position
from training.trainers.lightning.learner import Learner
from training.trainers.network.feeds import Batch, MemoryFeed
from training.trainers.network.progress import Progress

Pair = tuple[torch.Tensor, torch.Tensor]


class Batches:
    """The training batches (inputs, targets) of this worker. Each iteration is an epoch; the first begins at `start`.

    Lightning accepts any iterable with a length as a data loader. `fetched` is the queue of the batches that Lightning
    has fetched and not yet used. `before_fetch` is called before each batch, when Lightning has completed all steps
    before.
    """

    def __init__(
        self,
        feed: MemoryFeed,
        learner: Learner,
        progress: Progress,
        start: Position,
        before_fetch: Callable[[], None],
    ):
        self.feed, self.learner, self.clock = feed, learner, progress.clock
        self.start, self.before_fetch = start, before_fetch
        self.fetched: deque[Batch] = deque()

    def __len__(self) -> int:
        return self.feed.steps_per_epoch

    def __iter__(self) -> Iterator[Pair]:
        start, self.start = self.start, Position(self.start.epoch + 1, 0, 0)
        batches = self.feed.batches(start.epoch, start.step_in_epoch)
        while True:
            self.before_fetch()
            with self.clock.time("data wait"):
                batch = next(batches, None)
            if batch is None:
                return
            self.fetched.append(batch)
            with self.clock.time("compute"):
                inputs = self.learner.inputs.augmented(batch.inputs, batch.rows, start.epoch)
                targets = self.learner.targets(batch.targets)
            yield inputs, targets

    def state_dict(self) -> dict[str, Any]:
        """Empty: Evergreen's checkpoint has the position. Without this method, Lightning warns when it resumes."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :meth:`state_dict`."""


class ValidationBatches:
    """The validation rows of this worker, as (inputs, targets), for the module's `validation_step`.

    All ranks have the same number of batches, since `validation_step` may have collective operations.
    """

    def __init__(self, learner: Learner, progress: Progress):
        self.learner, self.progress = learner, progress
        ranks, rows = learner.ranks, progress.validation_rows
        largest_share = -(-len(rows) // ranks.world_size)
        self.parts = np.array_split(
            rows[ranks.rank :: ranks.world_size],
            -(-largest_share // learner.batch_rows),
        )

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Pair]:
        columns, device = self.progress.columns, self.learner.ranks.device
        for rows in self.parts:
            self.progress.heartbeat.beat(self.progress.done)
            inputs = torch.from_numpy(columns.read(rows)).to(device)
            targets = torch.from_numpy(columns.targets[rows]).to(device)
            yield self.learner.inputs.plain(inputs), self.learner.targets(targets)
