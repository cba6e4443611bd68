"""Feeds: the training rows of a worker, from memory-mapped columns or Ray Data shards; see also `loader_feed.py`.

For each step, a feed yields a :class:`Batch` with this worker's rows. The feeds `memory` and `loader` are exact: an
epoch can start at any step, and each row is used exactly once per epoch.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from training.data.dataset import Columns
from training.data.sample_order import Rows, SampleOrder
from training.settings.schema import Settings
from training.trainers.network.own_settings import network_settings
from training.trainers.ranks import Ranks

if TYPE_CHECKING:
    import torch
    from ray.data import DataIterator
    from torch.utils.data import Dataset

T = TypeVar("T")


def local_batch_size(settings: Settings) -> int:
    """Rows of one optimizer step on one worker."""
    return network_settings(settings).global_batch_size // max(1, settings.scaling.num_workers)


@dataclass(frozen=True)
class Batch:
    """This worker's share of one step, on its device: inputs and targets as in :class:`training.data.columns.Columns`.

    `rows` holds an identifier per row, which keys the random numbers of augmentation. `global_rows` is the number of
    rows of the step on all workers, by which the loss is divided. `weights` says how much each row counts in the loss;
    None: all the same.
    """

    inputs: "torch.Tensor"
    targets: "torch.Tensor"
    rows: Rows
    global_rows: int
    pieces: tuple[int, ...] = ()  # sizes of the virtual shards in this batch, in order
    weights: "torch.Tensor | None" = None

    def pinned(self, ranks: Ranks) -> "Batch":
        """This batch in page-locked memory, from which a copy to the GPU does not wait; on CPUs, this batch."""
        if ranks.device.type == "cpu":
            return self
        return self._each(lambda tensor: tensor.pin_memory())

    def on(self, ranks: Ranks) -> "Batch":
        """This batch on the device of `ranks`."""
        if ranks.device.type == "cpu":
            return self
        return self._each(lambda tensor: tensor.to(ranks.device, non_blocking=True))

    def _each(self, change: "Callable[[torch.Tensor], torch.Tensor]") -> "Batch":
        weights = None if self.weights is None else change(self.weights)
        return replace(self, inputs=change(self.inputs), targets=change(self.targets), weights=weights)

    def split(self) -> "Iterator[Batch]":
        """Yield each virtual shard of this batch as a separate batch."""
        start = 0
        for size in self.pieces:
            part = slice(start, start + size)
            weights = None if self.weights is None else self.weights[part]
            yield Batch(
                self.inputs[part], self.targets[part], self.rows[part], self.global_rows, weights=weights
            )
            start += size


class Feed(Protocol):
    """Training rows, grouped into steps."""

    @property
    def exact(self) -> bool:
        """Whether an epoch can start at any step; otherwise it starts at step 0."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch."""

    def batches(self, epoch: int, first_step: int) -> Iterator[Batch]:
        """This worker's batches of an epoch, from step `first_step` on (0 unless the feed is exact)."""


@dataclass(frozen=True)
class MemoryFeed:
    """Gathers rows from memory-mapped columns, in an order that is a function of (seed, epoch, step).

    A thread reads `ahead` batches ahead, and on a GPU copies these to page-locked memory; 0: no thread.
    """

    columns: Columns
    learn: Rows
    order: SampleOrder
    ranks: Ranks
    virtual_shards: int | None = None
    ahead: int = 0
    exact: bool = True

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch."""
        return self.order.steps_per_epoch

    def batches(self, epoch: int, first_step: int) -> Iterator[Batch]:
        """See :class:`Feed`."""
        steps = range(first_step, self.steps_per_epoch)
        for batch in read_ahead(lambda step: self._read(epoch, step), steps, self.ahead):
            yield batch.on(self.ranks)

    def _read(self, epoch: int, step: int) -> Batch:
        """This worker's batch of a step, in the memory of the CPU."""
        import torch

        start, stop = self.order.bounds(step)
        chosen, pieces = self._share(epoch, step)
        rows = self.learn[chosen]
        inputs = torch.from_numpy(self.columns.read(rows))
        targets = torch.from_numpy(self.columns.targets[rows])
        weights = weights_of(self.columns.weights, rows)
        return Batch(inputs, targets, rows, stop - start, pieces, weights).pinned(self.ranks)

    def _share(self, epoch: int, step: int) -> tuple[Rows, tuple[int, ...]]:
        """This worker's part of a step, as indices into `learn`, and the sizes of its virtual shards, if any."""
        if self.virtual_shards is None:
            return self.order.share(epoch, step, self.ranks.rank, self.ranks.world_size), ()
        shards = self.order.parts(epoch, step, self.virtual_shards)
        mine = shards[shards_of(self.virtual_shards, self.ranks.rank, self.ranks.world_size)]
        return np.concatenate([np.empty(0, np.int64), *mine]), tuple(map(len, mine))


def weights_of(weights: "npt.NDArray[np.float64] | None", rows: Rows) -> "torch.Tensor | None":
    """The weights of the row numbers `rows`, of those of all rows; None if all rows count the same."""
    import torch

    return None if weights is None else torch.from_numpy(weights[rows])


def shards_of(virtual_shards: int, rank: int, world_size: int) -> slice:
    """The virtual shards that `rank` computes: consecutive shards, whose number differs by at most one between ranks.

    With at least as many shards as ranks, each rank has a shard.
    """
    return slice(rank * virtual_shards // world_size, (rank + 1) * virtual_shards // world_size)


@dataclass(frozen=True)
class StreamFeed:
    """Streams rows of a Ray Data shard, decoded and filtered on other CPUs than training's; resumes at whole epochs.

    Every worker takes the same number of whole batches, so that no rank waits in a step for a rank without a batch.
    The shuffle buffer holds eight batches: with fewer than two, ranks get different numbers of batches.
    """

    shard: "DataIterator"
    learn_count: int
    settings: Settings
    ranks: Ranks
    exact: bool = False

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch: the whole batches that every worker has."""
        return self.learn_count // self.ranks.world_size // local_batch_size(self.settings)

    def batches(self, epoch: int, first_step: int) -> Iterator[Batch]:
        """See :class:`Feed`; `first_step` is 0."""
        size = local_batch_size(self.settings)
        stream = self.shard.iter_torch_batches(
            batch_size=size,
            drop_last=True,
            prefetch_batches=4,
            device=str(self.ranks.device),
            local_shuffle_buffer_size=8 * size,
            local_shuffle_seed=self.settings.seed + epoch,
        )
        for batch in islice(stream, first_step, self.steps_per_epoch):
            # The digest of its content identifies a row, as its position in the stream varies.
            rows = batch["digest"].cpu().numpy().view(np.int64)
            yield Batch(batch["image"], batch["label"], rows, size * self.ranks.world_size)


def read_ahead(read: Callable[[int], T], steps: Iterable[int], ahead: int) -> Iterator[T]:
    """Yield `read(step)` for each step, in order; a thread calls `read` up to `ahead` steps before the caller asks.

    An error of `read` is raised at its step. With `ahead` 0, `read` is called in the caller's thread.
    """
    if not ahead:
        yield from map(read, steps)
        return
    waiting: deque[Future[T]] = deque()
    with ThreadPoolExecutor(1, "evergreen-feed") as thread:
        try:
            for step in steps:
                waiting.append(thread.submit(read, step))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def columns_dataset(columns: Columns) -> "Dataset[Any]":
    """A map-style torch Dataset of (inputs, target) pairs over the rows of the dataset version."""
    import torch
    from torch.utils.data import Dataset

    class ColumnsDataset(Dataset[Any]):
        def __len__(self) -> int:
            return len(columns)

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int | float]:
            return torch.from_numpy(columns.read(np.array([index]))[0]), columns.targets[index].item()

    return ColumnsDataset()
