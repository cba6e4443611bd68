"""One worker's training by the own loop: set up the process, open the data, build the model, run the loop."""

from collections.abc import Callable

from training.attempts.job import TrainingJob
from training.data.dataset import Columns, open_columns
from training.data.sample_order import Rows
from training.recipe import Recipe
from training.trainers.entry import Entry
from training.trainers.network.building import import_recipe, total_steps
from training.trainers.network.feeds import Feed
from training.trainers.own_loop.loop import Loop
from training.trainers.own_loop.own_settings import loop_settings
from training.trainers.own_loop.replica import LoopReplica
from training.trainers.ranks import Ranks, prepare_process
from training.trainers.row_weights import weighted
from training.trainers.rows import training_rows

BuildFeed = Callable[[TrainingJob, Recipe, Columns, Rows, Ranks], Feed]
BuildReplica = Callable[[Recipe, TrainingJob, Ranks, int], LoopReplica]


def train(
    job: TrainingJob, ranks: Ranks, node: str, build_feed: BuildFeed, build_replica: BuildReplica
) -> None:
    """Train to the end, as one worker. Raises :class:`TrainingError` if the training can't succeed."""
    entry = Entry.of_worker(job, ranks, node)
    prepare_process(job.settings.scaling.threads_per_worker, loop_settings(job.settings).deterministic)
    recipe = import_recipe(job)
    with entry.heartbeat.kept_beating(0):
        columns = open_columns(job.dataset, "train", check_images=False)
    learn, validate = training_rows(columns, job.settings)
    columns = weighted(columns, learn, validate, job.dataset, job.settings)
    feed = build_feed(job, recipe, columns, learn, ranks)
    total = total_steps(job, feed, learn)
    replica = build_replica(recipe, job, ranks, total)

    def rebuild() -> tuple[Feed | None, LoopReplica]:
        again = import_recipe(job)
        new_feed = None if job.feed == "stream" else build_feed(job, again, columns, learn, ranks)
        return new_feed, build_replica(again, job, ranks, total)

    loop = Loop(job, ranks, columns, feed, validate, replica, total, entry.heartbeat, entry.fence, rebuild)
    with entry.heartbeat.kept_beating(0):  # the checkpoint may come from a store
        position = loop.progress.resume()
    entry.note_ready(position.step)
    loop.run(position)
