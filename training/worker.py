"""What every training process does: set itself up, open the data, build the model, run the loop."""

import logging
import sys
import time
from typing import Any

from training.dataset import Columns, open_columns
from training.errors import TrainingError
from training.feeds import Feed, MemoryFeed, StreamFeed, columns_dataset, loader_feed, training_rows
from training.job import Attempt, TrainingJob
from training.order import Rows, SampleOrder
from training.ranks import Ranks, prepare_process
from training.recipe import Recipe, reload

log = logging.getLogger("evergreen.worker")

ATTEMPTS = "attempts.jsonl"


def run_ray_worker(config: dict[str, Any]) -> None:
    """Entry of a Ray Train worker; `config["job"]` is a :class:`TrainingJob` as JSON."""
    run_worker(TrainingJob.model_validate_json(config["job"]), Ranks.of_ray_worker())


def run_worker(job: TrainingJob, ranks: Ranks) -> None:
    """Train. Raises :class:`TrainingError` when the training can't succeed."""
    from training.learner import Learner
    from training.loop import Loop

    began = time.time()
    prepare_process(job.settings.scaling.threads_per_worker, job.settings.training.deterministic)
    recipe = reload(job.recipe, job.paths.recipe)
    columns = open_columns(job.dataset, "train")
    learn, validate = training_rows(columns, job.settings)
    feed = build_feed(job, recipe, columns, learn, ranks)
    total = min(
        feed.steps_per_epoch * job.settings.training.epochs, job.settings.training.max_steps or sys.maxsize
    )
    if not total:
        raise TrainingError(
            f"training.global_batch_size: {len(learn)} training rows give no whole batch of "
            f"{job.settings.training.global_batch_size} rows; lower it, or use data.feed=memory."
        )
    learner = Learner(recipe, job.dataset, job.settings, ranks, total)
    if ranks.is_first:
        attempt = Attempt(
            began=began, ready=time.time(), world_size=ranks.world_size, device=ranks.device.type
        )
        with (job.paths.root / ATTEMPTS).open("a", encoding="utf-8") as out:
            out.write(attempt.model_dump_json() + "\n")
    Loop(job, ranks, columns, feed, validate, learner, total).run()


def build_feed(job: TrainingJob, recipe: Recipe, columns: Columns, learn: Rows, ranks: Ranks) -> Feed:
    """The feed that the job names, for this worker."""
    if job.feed == "memory":
        order = SampleOrder(len(learn), job.settings.training.global_batch_size, job.settings.seed)
        start, stop = order.bounds(order.steps_per_epoch - 1)
        if stop - start < ranks.world_size:
            raise TrainingError(
                f"training.global_batch_size: the last step of an epoch has {stop - start} rows for "
                f"{ranks.world_size} workers; use a larger batch or fewer workers (scaling.num_workers)."
            )
        return MemoryFeed(columns, learn, order, ranks)
    if job.feed == "loader":
        dataset = recipe.dataset(job.dataset, "train") if recipe.dataset else columns_dataset(columns)
        return loader_feed(dataset, learn, job.settings, ranks)
    import ray.train

    return StreamFeed(ray.train.get_dataset_shard("train"), len(learn), job.settings, ranks)
