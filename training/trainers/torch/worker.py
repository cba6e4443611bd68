"""Entry point of a training process: set up the process, open the data, build the model, run the training loop."""

import logging
import sys
import time
from typing import TYPE_CHECKING

from training.attempts.fence import Fence
from training.attempts.heartbeat import Heartbeat, furthest_step
from training.attempts.history import Attempt, note
from training.attempts.job import TrainingJob
from training.data.dataset import Columns, open_columns
from training.data.sample_order import Rows, SampleOrder, stream_key
from training.errors import TrainingError
from training.recipe import Recipe, reload
from training.trainers.generators import seed_generators
from training.trainers.ranks import Ranks, prepare_process
from training.trainers.torch.feeds import (
    Feed,
    MemoryFeed,
    StreamFeed,
    columns_dataset,
    loader_feed,
    training_rows,
)
from training.trainers.torch.own_settings import own_settings

if TYPE_CHECKING:
    from training.trainers.torch.replica import Replica

log = logging.getLogger("evergreen.worker")

_IMPORT = 6  # stream of random numbers, see training.data.sample_order


def run_worker(job: TrainingJob, ranks: Ranks, node: str = "") -> None:
    """Train to the end, as one worker. Raises :class:`TrainingError` if the training can't succeed."""
    from training.trainers.torch.loop import Loop

    began = time.time()
    # Read before the first heartbeat of this attempt, which overwrites those of older attempts.
    reached = furthest_step(job.paths)
    fence = Fence(job.paths.fence, job.attempt, driver=job.driver)
    if ranks.is_first:
        fence = Fence.enter(job.paths, job.attempt, job.driver)
    heartbeat = Heartbeat(job.paths.beats / f"rank-{ranks.rank}.json", job.attempt, ranks.rank, node)
    heartbeat.beat(0)
    prepare_process(job.settings.scaling.threads_per_worker, own_settings(job.settings).deterministic)
    recipe = import_recipe(job)
    with heartbeat.kept_beating(0):
        columns = open_columns(job.dataset, "train", check_images=False)
    learn, validate = training_rows(columns, job.settings)
    feed = build_feed(job, recipe, columns, learn, ranks)
    total = min(
        feed.steps_per_epoch * own_settings(job.settings).epochs,
        own_settings(job.settings).max_steps or sys.maxsize,
    )
    if not total:
        raise TrainingError(
            f"training.global_batch_size: {len(learn)} training rows give no whole batch of "
            f"{own_settings(job.settings).global_batch_size} rows; lower it, or use data.feed=memory."
        )
    replica = build_replica(recipe, job, ranks, total)

    def rebuild() -> "tuple[Feed | None, Replica]":
        again = import_recipe(job)
        rows = None if job.feed == "stream" else build_feed(job, again, columns, learn, ranks)
        return rows, build_replica(again, job, ranks, total)

    loop = Loop(job, ranks, columns, feed, validate, replica, total, heartbeat, fence, rebuild)
    with heartbeat.kept_beating(0):  # the checkpoint may come from a store
        position = loop.resume()
    if ranks.is_first:
        attempt = Attempt(
            number=fence.number,
            group=fence.group,
            began=began,
            ready=time.time(),
            world_size=ranks.world_size,
            device=ranks.device.type,
            first_step=position.step,
            reached=max(reached, position.step),
        )
        note(job.paths.attempts, attempt)
    loop.run(position)


def import_recipe(job: TrainingJob) -> Recipe:
    """Import the recipe from the run's copy. Random numbers that its import draws depend on the seed alone."""
    seed_generators(stream_key(job.settings.seed, _IMPORT))
    return reload(job.recipe, job.paths.recipe)


def build_replica(recipe: Recipe, job: TrainingJob, ranks: Ranks, total_steps: int) -> "Replica":
    """Build the replica of the model for this worker: sharded if `training.virtual_shards` is set."""
    from training.trainers.torch.replica import Replica
    from training.trainers.torch.virtual_shards import ShardedReplica

    kind = Replica if own_settings(job.settings).virtual_shards is None else ShardedReplica
    return kind(recipe, job.dataset, job.settings, ranks, total_steps)


def build_feed(job: TrainingJob, recipe: Recipe, columns: Columns, learn: Rows, ranks: Ranks) -> Feed:
    """Build this worker's feed, of the kind that the job names.

    Raises :class:`TrainingError` if the last step of an epoch of the memory feed has fewer rows than workers or
    virtual shards.
    """
    if job.feed == "memory":
        order = SampleOrder(len(learn), own_settings(job.settings).global_batch_size, job.settings.seed)
        shards = own_settings(job.settings).virtual_shards
        start, stop = order.bounds(order.steps_per_epoch - 1)
        if stop - start < (shards or ranks.world_size):
            raise TrainingError(
                f"training.global_batch_size: the last step of an epoch has {stop - start} rows for "
                + (f"{shards} virtual shards" if shards else f"{ranks.world_size} workers")
                + "; use a larger batch, fewer workers (scaling.num_workers) or fewer training.virtual_shards."
            )
        return MemoryFeed(columns, learn, order, ranks, shards)
    if job.feed == "loader":
        dataset = recipe.dataset(job.dataset, "train") if recipe.dataset else columns_dataset(columns)
        return loader_feed(dataset, learn, job.settings, ranks)
    import ray.train

    return StreamFeed(ray.train.get_dataset_shard("train"), len(learn), job.settings, ranks)
