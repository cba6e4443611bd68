"""How rows reach a worker: from memory-mapped columns, from Ray Data shards, or from a torch DataLoader.

All three give :class:`Batch`es of this worker's share of each global step. Only `memory` is exact: it can be
entered at any step, and every row is used exactly once an epoch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from training.data.dataset import Columns, is_validation
from training.data.sample_order import Rows, SampleOrder, stream_key
from training.errors import SettingError
from training.settings.schema import Settings
from training.trainers.torch.generators import seed_generators
from training.trainers.torch.ranks import Ranks

if TYPE_CHECKING:
    import torch
    from ray.data import DataIterator
    from torch.utils.data import DataLoader, Dataset

_DATASET = 5  # stream of random numbers, see training.data.sample_order


@dataclass(frozen=True)
class Batch:
    """This worker's share of one step: uint8 images (rows, channels, height, width) and labels on its device.

    `rows` identifies each row for the random draws of augmentation; `global_rows` counts the step's rows on all
    workers, by which the loss is divided.
    """

    images: "torch.Tensor"
    labels: "torch.Tensor"
    rows: Rows
    global_rows: int
    pieces: tuple[int, ...] = ()  # sizes of the virtual shards that these rows are, in order

    def split(self) -> "Iterator[Batch]":
        """The virtual shards of this batch, each a batch of its own."""
        start = 0
        for size in self.pieces:
            part = slice(start, start + size)
            yield Batch(self.images[part], self.labels[part], self.rows[part], self.global_rows)
            start += size


class Feed(Protocol):
    """Training rows in steps."""

    @property
    def exact(self) -> bool:
        """Whether an epoch can be entered at any step."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one pass."""

    def batches(self, epoch: int, first_step: int) -> Iterator[Batch]:
        """This worker's batches of an epoch, from step `first_step` on (0 unless the feed is exact)."""


def training_rows(columns: Columns, settings: Settings) -> tuple[Rows, Rows]:
    """Row numbers of the train split to learn from, and those kept back for validation.

    Raises :class:`SettingError` when either is too small to work with.
    """
    kept_back = columns.validation
    if kept_back is None:
        kept_back = is_validation(columns.digests, settings.data.validation_share)
    learn, validate = np.flatnonzero(~kept_back), np.flatnonzero(kept_back)
    workers = max(1, settings.scaling.num_workers)
    if len(learn) < 2 * workers or not len(validate):
        raise SettingError(
            f"data.validation_share: {len(columns)} training rows are divided into {len(learn)} to learn from and "
            f"{len(validate)} to validate on; {workers} workers need at least {2 * workers} and 1. Add rows or change "
            + ("the share." if columns.validation is None else "data.validation_split.")
        )
    return learn, validate


@dataclass(frozen=True)
class MemoryFeed:
    """Rows gathered from memory-mapped columns in the order that (seed, epoch, step) gives."""

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
            images = torch.from_numpy(self.columns.read(rows))
            labels = torch.from_numpy(self.columns.labels[rows])
            yield Batch(_to(images, self.ranks), _to(labels, self.ranks), rows, stop - start, pieces)

    def _share(self, epoch: int, step: int) -> tuple[Rows, tuple[int, ...]]:
        """This worker's positions of a step: an even part, or whole virtual shards."""
        if self.virtual_shards is None:
            return self.order.share(epoch, step, self.ranks.rank, self.ranks.world_size), ()
        shards = self.order.parts(epoch, step, self.virtual_shards)
        mine = shards[shards_of(self.virtual_shards, self.ranks.rank, self.ranks.world_size)]
        return np.concatenate([np.empty(0, np.int64), *mine]), tuple(map(len, mine))


def shards_of(virtual_shards: int, rank: int, world_size: int) -> slice:
    """Which virtual shards `rank` computes: consecutive ones, whose number differs by one at most between ranks.

    With at least as many shards as ranks, each rank has one.
    """
    return slice(rank * virtual_shards // world_size, (rank + 1) * virtual_shards // world_size)


@dataclass(frozen=True)
class StreamFeed:
    """Ray Data shards, decoded and filtered on other CPUs than training's; resumes at whole epochs.

    Every worker takes the same number of whole batches, so no rank waits for a step that another lacks; the
    shuffle buffer holds eight batches, as a buffer below two gives ranks different numbers of batches.
    """

    shard: "DataIterator"
    learn_count: int
    settings: Settings
    ranks: Ranks
    exact: bool = False

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches that every worker has."""
        return self.learn_count // self.ranks.world_size // self.settings.local_batch_size

    def batches(self, epoch: int, first_step: int) -> Iterator[Batch]:
        """See :class:`Feed`; `first_step` is 0."""
        size = self.settings.local_batch_size
        stream = self.shard.iter_torch_batches(
            batch_size=size,
            drop_last=True,
            prefetch_batches=4,
            device=str(self.ranks.device),
            local_shuffle_buffer_size=8 * size,
            local_shuffle_seed=self.settings.seed + epoch,
        )
        for batch in islice(stream, first_step, self.steps_per_epoch):
            # A row's content names it, as its place in the stream is not fixed.
            rows = batch["digest"].cpu().numpy().view(np.int64)
            yield Batch(batch["image"], batch["label"], rows, size * self.ranks.world_size)


@dataclass(frozen=True)
class LoaderFeed:
    """A torch DataLoader over a map-style Dataset, sharded by DistributedSampler; resumes at whole epochs.

    The sampler repeats up to world_size - 1 rows an epoch so that all ranks have as many.
    """

    loader: "DataLoader[Any]"
    ranks: Ranks
    exact: bool = False

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one worker."""
        return len(self.loader)

    def batches(self, epoch: int, first_step: int) -> Iterator[Batch]:
        """See :class:`Feed`; `first_step` is 0."""
        self.loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        self.loader.dataset.epoch = epoch  # type: ignore[attr-defined]  # before loader processes copy it
        for images, labels, rows in islice(self.loader, first_step, None):
            numbers = rows.cpu().numpy()
            yield Batch(
                _to(images, self.ranks),
                _to(labels, self.ranks),
                numbers,
                len(numbers) * self.ranks.world_size,
            )


def loader_feed(dataset: "Dataset[Any]", learn: Rows, settings: Settings, ranks: Ranks) -> LoaderFeed:
    """A :class:`LoaderFeed` over rows `learn` of `dataset`, through Ray Train's `prepare_data_loader` on Ray.

    Before each row, the global random generators are seeded from (seed, epoch, row), in loader processes as well.
    """
    from torch.utils.data import DataLoader, Dataset, DistributedSampler

    class Numbered(Dataset[Any]):
        """Pairs of the wrapped dataset with their row numbers, which augmentation needs."""

        epoch = 0

        def __len__(self) -> int:
            return len(learn)

        def __getitem__(self, index: int) -> tuple[Any, Any, int]:
            row = int(learn[index])
            seed_generators(stream_key(settings.seed, self.epoch, _DATASET, row))
            image, label = dataset[row]
            return image, label, row

    numbered = Numbered()
    sampler: DistributedSampler[Any] = DistributedSampler(
        numbered, ranks.world_size, ranks.rank, seed=settings.seed
    )
    loader: DataLoader[Any] = DataLoader(
        numbered, settings.local_batch_size, sampler=sampler, num_workers=settings.data.loader_processes
    )
    if ranks.distributed:
        from ray.train.torch import prepare_data_loader

        loader = prepare_data_loader(loader, add_dist_sampler=False, move_to_device=False)
    return LoaderFeed(loader, ranks)


def columns_dataset(columns: Columns) -> "Dataset[Any]":
    """The dataset version's rows as a map-style torch Dataset of (uint8 image, label)."""
    import torch
    from torch.utils.data import Dataset

    class ColumnsDataset(Dataset[Any]):
        def __len__(self) -> int:
            return len(columns)

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return torch.from_numpy(columns.read(np.array([index]))[0]), int(columns.labels[index])

    return ColumnsDataset()


def _to(tensor: "torch.Tensor", ranks: Ranks) -> "torch.Tensor":
    if ranks.device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(ranks.device, non_blocking=True)
