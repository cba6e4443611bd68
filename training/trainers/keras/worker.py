"""Entry point of a training process: Keras on its torch backend, then Evergreen's own loop."""

from training.attempts.job import TrainingJob
from training.data.dataset import Columns
from training.data.sample_order import Rows
from training.recipe import Recipe
from training.trainers.keras.library import torch_keras
from training.trainers.keras.module import KerasModule
from training.trainers.network.building import memory_feed
from training.trainers.network.feeds import Feed
from training.trainers.own_loop.replica import LoopReplica
from training.trainers.own_loop.worker import train
from training.trainers.ranks import Ranks


def run_worker(job: TrainingJob, ranks: Ranks, node: str = "") -> None:
    """Train to the end, as one worker. Raises :class:`TrainingError` if the training can't succeed."""
    torch_keras()  # before the recipe, whose files may import Keras
    train(job, ranks, node, _build_feed, _build_replica)


def _build_feed(job: TrainingJob, recipe: Recipe, columns: Columns, learn: Rows, ranks: Ranks) -> Feed:
    del recipe
    return memory_feed(job, columns, learn, ranks)


def _build_replica(recipe: Recipe, job: TrainingJob, ranks: Ranks, total_steps: int) -> LoopReplica:
    replica = LoopReplica(recipe, job.dataset, job.settings, ranks, total_steps)
    # A recipe has these settings from `Keras(build_model)` alone.
    assert isinstance(replica.module, KerasModule)
    return replica
