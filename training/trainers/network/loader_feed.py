"""The feed `loader`: a torch DataLoader over a map-style Dataset, with processes that read rows ahead."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import DataLoader, Dataset, Sampler  # noqa: TID253 - imported by processes that train

from training.data.sample_order import Rows, SampleOrder, stream_key
from training.settings.schema import Settings
from training.trainers.generators import seed_generators
from training.trainers.network.feeds import Batch, weights_of
from training.trainers.ranks import Ranks

_DATASET = 5  # stream of random numbers, see training.data.sample_order
_Index = tuple[int, int]  # epoch and row number: persistent loader processes get the epoch from the index


class StepSampler(Sampler[list[_Index]]):
    """This rank's rows of each step of `epoch`, from `first_step` on: the same rows as those of the feed `memory`."""

    def __init__(self, order: SampleOrder, learn: Rows, ranks: Ranks):
        self.order, self.learn, self.ranks = order, learn, ranks
        self.epoch = self.first_step = 0

    def __len__(self) -> int:
        return self.order.steps_per_epoch

    def __iter__(self) -> Iterator[list[_Index]]:
        epoch = self.epoch
        for step in range(self.first_step, len(self)):
            yield [(epoch, int(row)) for row in self.rows(epoch, step)]

    def rows(self, epoch: int, step: int) -> Rows:
        """This rank's rows of a step."""
        mine: Rows = self.learn[self.order.share(epoch, step, self.ranks.rank, self.ranks.world_size)]
        return mine


class SeededRows(Dataset[Any]):
    """Seeds the global random generators from (seed, epoch, row) before it reads a row of `dataset`."""

    def __init__(self, dataset: "Dataset[Any]", seed: int):
        self.dataset, self.seed = dataset, seed

    def __getitem__(self, index: _Index) -> tuple[Any, Any]:
        epoch, row = index
        seed_generators(stream_key(self.seed, epoch, _DATASET, row))
        inputs, label = self.dataset[row]
        is_single = math.prod(getattr(label, "shape", (0,))) == 1
        # A batch of arrays (1,) would have the shape (rows, 1).
        return inputs, label.item() if is_single else label


@dataclass(frozen=True)
class LoaderFeed:
    """Reads batches from a DataLoader whose batch sampler is `sampler`; `weights` are those of all rows, if any."""

    loader: "DataLoader[Any]"
    sampler: StepSampler
    weights: "npt.NDArray[np.float64] | None" = None
    exact: bool = True

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch."""
        return len(self.sampler)

    def batches(self, epoch: int, first_step: int) -> Iterator[Batch]:
        """See :class:`training.trainers.network.feeds.Feed`."""
        self.sampler.epoch, self.sampler.first_step = epoch, first_step
        steps = range(first_step, self.steps_per_epoch)
        for step, (inputs, targets) in zip(steps, _read(self.loader), strict=True):
            start, stop = self.sampler.order.bounds(step)
            rows = self.sampler.rows(epoch, step)
            weights = weights_of(self.weights, rows)
            batch = Batch(inputs, targets, rows, stop - start, weights=weights)
            yield batch.on(self.sampler.ranks)


def _read(loader: "DataLoader[Any]") -> Iterator[Any]:
    """The batches of `loader`.

    Raises:
        RuntimeError when the connection to a process of `loader` breaks, as torch raises once it knows that this
        process died: a dying process closes its connections first.
    """
    try:
        yield from loader
    except (ConnectionError, EOFError) as error:
        # torch's ExceptionWrapper begins the message of an error in a loader process in this way.
        of_the_dataset = loader.num_workers == 0 or str(error).startswith("Caught ")
        if of_the_dataset:
            raise
        raise RuntimeError(f"DataLoader worker closed its connection ({type(error).__name__})") from error


def loader_feed(
    dataset: "Dataset[Any]",
    learn: Rows,
    order: SampleOrder,
    settings: Settings,
    ranks: Ranks,
    weights: "npt.NDArray[np.float64] | None" = None,
) -> LoaderFeed:
    """Build a :class:`LoaderFeed` over the rows `learn` of `dataset`, which are used in the order `order`.

    With several workers, Ray Train's `prepare_data_loader` prepares the loader: on a GPU, another CUDA stream copies
    the next batch while the model computes.
    """
    import torch

    processes, sampler = settings.data.loader_processes, StepSampler(order, learn, ranks)
    loader: DataLoader[Any] = DataLoader(
        SeededRows(dataset, settings.seed),
        batch_sampler=sampler,
        num_workers=processes,
        prefetch_factor=settings.data.loader_prefetch if processes else None,
        persistent_workers=processes > 0,
        pin_memory=ranks.device.type == "cuda",
        generator=torch.Generator(),  # else each epoch would draw a number from the global generator
    )
    if ranks.distributed:
        from ray.train.torch import prepare_data_loader

        # With a sampler of its own, Ray would replace Evergreen's, and drop prefetch_factor and persistent_workers.
        loader = prepare_data_loader(loader, add_dist_sampler=False)
    return LoaderFeed(loader, sampler, weights)
