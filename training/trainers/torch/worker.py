"""Entry point of a training process, and what the settings choose for the own loop: the feed and the replica."""

from typing import TYPE_CHECKING

from training.attempts.job import TrainingJob
from training.data.dataset import Columns
from training.data.sample_order import Rows
from training.recipe import Recipe
from training.trainers.network.building import memory_feed, sample_order
from training.trainers.network.dataset_rows import own_dataset
from training.trainers.network.feeds import Feed, StreamFeed, columns_dataset
from training.trainers.network.fine_tuning import initial_weights
from training.trainers.ranks import Ranks
from training.trainers.torch.own_settings import own_settings

if TYPE_CHECKING:
    from training.trainers.torch.replica import Replica
    from training.trainers.torch.settings import TrainingSettings


def run_worker(job: TrainingJob, ranks: Ranks, node: str = "") -> None:
    """Train to the end, as one worker. Raises :class:`TrainingError` if the training can't succeed."""
    from training.trainers.own_loop.worker import train

    train(job, ranks, node, build_feed, build_replica)


def build_replica(recipe: Recipe, job: TrainingJob, ranks: Ranks, total_steps: int) -> "Replica":
    """Build the replica of the model for this worker, of the kind that the settings name."""
    return _kind(own_settings(job.settings), ranks)(
        recipe, job.dataset, job.settings, ranks, total_steps, initial_weights(job)
    )


def _kind(options: "TrainingSettings", ranks: Ranks) -> "type[Replica]":
    if options.virtual_shards is not None:
        from training.trainers.torch.virtual_shards import ShardedReplica

        return ShardedReplica
    if options.strategy == "fsdp" and ranks.distributed:  # one worker has nothing to divide
        from training.trainers.torch.fsdp import FsdpReplica

        return FsdpReplica
    if options.strategy == "deepspeed" and ranks.distributed:
        from training.trainers.torch.zero import ZeroReplica

        return ZeroReplica
    from training.trainers.torch.replica import Replica

    return Replica


def build_feed(job: TrainingJob, recipe: Recipe, columns: Columns, learn: Rows, ranks: Ranks) -> Feed:
    """Build this worker's feed, of the kind that the job names.

    Raises :class:`TrainingError` if the last step of an epoch of an exact feed has fewer rows than workers or virtual
    shards, and :class:`SettingError` if the recipe's own Dataset has other rows than the dataset version.
    """
    if job.feed == "memory":
        return memory_feed(job, columns, learn, ranks, own_settings(job.settings).virtual_shards)
    if job.feed == "loader":
        from training.trainers.network.loader_feed import loader_feed

        own = recipe.dataset is not None
        dataset = own_dataset(recipe, job.dataset, columns, learn) if own else columns_dataset(columns)
        order = sample_order(job, learn, ranks)
        return loader_feed(dataset, learn, order, job.settings, ranks, columns.weights)
    import ray.train

    return StreamFeed(ray.train.get_dataset_shard("train"), len(learn), job.settings, ranks)
