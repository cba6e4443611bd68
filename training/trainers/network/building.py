"""What a worker does before its first step: import the recipe's copy, build the feed of rows, count the steps."""

import sys

from training.attempts.job import TrainingJob
from training.data.dataset import Columns
from training.data.sample_order import Rows, SampleOrder, stream_key
from training.errors import TrainingError
from training.recipe import Recipe, reload
from training.trainers.generators import seed_generators
from training.trainers.network.feeds import Feed, MemoryFeed
from training.trainers.network.own_settings import network_settings
from training.trainers.ranks import Ranks
from training.trainers.rows import order_of

_AHEAD = 2  # batches that a thread reads ahead of a GPU; a CPU is busy with the model's computation
_IMPORT = 6  # stream of random numbers, see training.data.sample_order


def import_recipe(job: TrainingJob) -> Recipe:
    """Import the recipe from the run's copy. Random numbers drawn during the import depend on the seed alone."""
    seed_generators(stream_key(job.settings.seed, _IMPORT))
    return reload(job.recipe, job.paths.recipe)


def total_steps(job: TrainingJob, feed: Feed, learn: Rows) -> int:
    """Optimizer steps of the training. Raises :class:`TrainingError` if the training rows `learn` give no batch."""
    settings = network_settings(job.settings)
    total = min(feed.steps_per_epoch * settings.epochs, settings.max_steps or sys.maxsize)
    if not total:
        raise TrainingError(
            f"training.global_batch_size: {len(learn)} training rows give no whole batch of "
            f"{settings.global_batch_size} rows; lower it, or use data.feed=memory."
        )
    return total


def memory_feed(
    job: TrainingJob, columns: Columns, learn: Rows, ranks: Ranks, shards: int | None = None
) -> MemoryFeed:
    """Build the feed `memory` of this worker; `shards` is the number of virtual shards of a step, if any.

    Raises :class:`TrainingError` if the last step of an epoch has fewer rows than workers or virtual shards.
    """
    order = sample_order(job, learn, ranks, shards)
    ahead = _AHEAD if ranks.device.type == "cuda" else 0
    return MemoryFeed(columns, learn, order, ranks, shards, ahead)


def sample_order(job: TrainingJob, learn: Rows, ranks: Ranks, shards: int | None = None) -> SampleOrder:
    """The order of the rows `learn`. Raises the error of :func:`memory_feed`."""
    order = order_of(job.settings, len(learn), network_settings(job.settings).global_batch_size)
    start, stop = order.bounds(order.steps_per_epoch - 1)
    if stop - start < (shards or ranks.world_size):
        raise TrainingError(
            f"training.global_batch_size: the last step of an epoch has {stop - start} rows for "
            + (f"{shards} virtual shards" if shards else f"{ranks.world_size} workers")
            + "; use a larger batch, fewer workers (scaling.num_workers) or fewer training.virtual_shards."
        )
    return order
