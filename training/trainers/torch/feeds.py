"""Feeds: the training rows of a worker, from memory-mapped columns, Ray Data shards or a torch DataLoader.

For each step, all three yield a :class:`Batch` with this worker's rows. Only the `memory` feed is exact: an epoch can
start at any step, and each row is used exactly once per epoch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from training.data.dataset import Columns
from training.data.sample_order import Rows, SampleOrder, stream_key
from training.settings.schema import Settings
from training.trainers.generators import seed_generators
from training.trainers.ranks import Ranks
from training.trainers.rows import training_rows as training_rows
from training.trainers.torch.own_settings import own_settings

if TYPE_CHECKING:
    import torch
    from ray.data import DataIterator
    from torch.utils.data import DataLoader, Dataset

_DATASET = 5  # stream of random numbers, see training.data.sample_order


def local_batch_size(settings: Settings) -> int:
    """Rows of one optimizer step on one worker."""
    return own_settings(settings).global_batch_size // max(1, settings.scaling.num_workers)


@dataclass(frozen=True)
class Batch:
    """This worker's share of one step, on its device: inputs and targets as in :class:`training.data.columns.Columns`.

    `rows` holds an identifier per row, which keys the random numbers of augmentation. `global_rows` is the number of
    rows of the step on all workers, by which the loss is divided.
    """

    inputs: "torch.Tensor"
    targets: "torch.Tensor"
    rows: Rows
    global_rows: int
    pieces: tuple[int, ...] = ()  # sizes of the virtual shards in this batch, in order

    def split(self) -> "Iterator[Batch]":
        """Yield each virtual shard of this batch as a separate batch."""
        start = 0
        for size in self.pieces:
            part = slice(start, start + size)
            yield Batch(self.inputs[part], self.targets[part], self.rows[part], self.global_rows)
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
    """Gathers rows from memory-mapped columns, in an order that is a function of (seed, epoch, step)."""

    columns: Columns
    learn: Rows
    order: SampleOrder
    ranks: Ranks
    virtual_shards: int | None = None
    exact: bool = True

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch."""
        return self.order.steps_per_epoch

    def batches(self, epoch: int, first_step: int) -> Iterator[Batch]:
        """See :class:`Feed`."""
        import torch

        for step in range(first_step, self.steps_per_epoch):
            start, stop = self.order.bounds(step)
            chosen, pieces = self._share(epoch, step)
            rows = self.learn[chosen]
            inputs = torch.from_numpy(self.columns.read(rows))
            targets = torch.from_numpy(self.columns.targets[rows])
            yield Batch(_to(inputs, self.ranks), _to(targets, self.ranks), rows, stop - start, pieces)

    def _share(self, epoch: int, step: int) -> tuple[Rows, tuple[int, ...]]:
        """This worker's part of a step, as indices into `learn`, and the sizes of its virtual shards, if any."""
        if self.virtual_shards is None:
            return self.order.share(epoch, step, self.ranks.rank, self.ranks.world_size), ()
        shards = self.order.parts(epoch, step, self.virtual_shards)
        mine = shards[shards_of(self.virtual_shards, self.ranks.rank, self.ranks.world_size)]
        return np.concatenate([np.empty(0, np.int64), *mine]), tuple(map(len, mine))


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


@dataclass(frozen=True)
class LoaderFeed:
    """Reads rows from a torch DataLoader over a map-style Dataset; resumes at whole epochs.

    A DistributedSampler splits the rows; it repeats up to world_size - 1 rows per epoch, so that all ranks have the
    same number of rows.
    """

    loader: "DataLoader[Any]"
    ranks: Ranks
    exact: bool = False

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch: the batches of one worker."""
        return len(self.loader)

    def batches(self, epoch: int, first_step: int) -> Iterator[Batch]:
        """See :class:`Feed`; `first_step` is 0."""
        self.loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        self.loader.dataset.epoch = epoch  # type: ignore[attr-defined]  # before loader processes copy it
        for inputs, targets, rows in islice(self.loader, first_step, None):
            numbers = rows.cpu().numpy()
            yield Batch(
                _to(inputs, self.ranks),
                _to(targets, self.ranks),
                numbers,
                len(numbers) * self.ranks.world_size,
            )


def loader_feed(dataset: "Dataset[Any]", learn: Rows, settings: Settings, ranks: Ranks) -> LoaderFeed:
    """Build a :class:`LoaderFeed` over the rows `learn` of `dataset`.

    With several workers, Ray Train's `prepare_data_loader` prepares the loader. The global random generators are
    seeded from (seed, epoch, row) before each row is read, also in the loader's processes.
    """
    from torch.utils.data import DataLoader, Dataset, DistributedSampler

    class Numbered(Dataset[Any]):
        """Adds to each pair of the wrapped dataset its row number, which augmentation needs."""

        epoch = 0

        def __len__(self) -> int:
            return len(learn)

        def __getitem__(self, index: int) -> tuple[Any, Any, int]:
            row = int(learn[index])
            seed_generators(stream_key(settings.seed, self.epoch, _DATASET, row))
            inputs, target = dataset[row]
            return inputs, target, row

    numbered = Numbered()
    sampler: DistributedSampler[Any] = DistributedSampler(
        numbered, ranks.world_size, ranks.rank, seed=settings.seed
    )
    loader: DataLoader[Any] = DataLoader(
        numbered, local_batch_size(settings), sampler=sampler, num_workers=settings.data.loader_processes
    )
    if ranks.distributed:
        from ray.train.torch import prepare_data_loader

        loader = prepare_data_loader(loader, add_dist_sampler=False, move_to_device=False)
    return LoaderFeed(loader, ranks)


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


def _to(tensor: "torch.Tensor", ranks: Ranks) -> "torch.Tensor":
    if ranks.device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(ranks.device, non_blocking=True)
