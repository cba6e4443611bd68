"""Entry point of a training process: set up the process, open the data, build the model, run the steps."""

from training.attempts.job import TrainingJob
from training.checkpoints.checkpoint_log import Position
from training.data.dataset import open_columns
from training.trainers.entry import Entry
from training.trainers.network.building import import_recipe, memory_feed, total_steps
from training.trainers.network.feeds import MemoryFeed
from training.trainers.network.progress import Progress
from training.trainers.network.replay_check import NoReplay
from training.trainers.ranks import Ranks, prepare_process
from training.trainers.rows import training_rows
from training.trainers.tensorflow.learner import Learner
from training.trainers.tensorflow.library import prepare_tensorflow
from training.trainers.tensorflow.own_settings import own_settings
from training.trainers.tensorflow.strategy import strategy_of

_NO_REPLAY = NoReplay("trainer tensorflow has no replay check")


def run_worker(job: TrainingJob, ranks: Ranks, node: str = "") -> None:
    """Train to the end, as one worker. Raises :class:`TrainingError` if the training can't succeed."""
    entry = Entry.of_worker(job, ranks, node)
    threads, deterministic = job.settings.scaling.threads_per_worker, own_settings(job.settings).deterministic
    with entry.heartbeat.kept_beating(0):
        prepare_process(threads, deterministic)
        prepare_tensorflow(threads, deterministic)  # before the recipe, whose files may import Keras
        strategy = strategy_of(ranks)
        recipe = import_recipe(job)
        columns = open_columns(job.dataset, "train", check_images=False)
        learn, validate = training_rows(columns, job.settings)
        feed = memory_feed(job, columns, learn, ranks)
        total = total_steps(job, feed, learn)
        learner = Learner(recipe, job.dataset, job.settings, ranks, strategy, total)
    progress = Progress(
        job, ranks, columns, validate, learner, total, feed.steps_per_epoch, True, entry.heartbeat, entry.fence,
        replay=_NO_REPLAY,
    )  # fmt: skip
    with entry.heartbeat.kept_beating(0):  # the checkpoint may come from a store
        position = progress.resume()
    entry.note_ready(position.step)
    while position.step < total:
        position = _run_epoch(progress, learner, feed, position)
    progress.finish()


def _run_epoch(progress: Progress, learner: Learner, feed: MemoryFeed, position: Position) -> Position:
    """Train from `position` to the end of its epoch, or of the training; returns the start of the next epoch."""
    epoch, clock = progress.begin_epoch(position), progress.clock
    batches = feed.batches(position.epoch, position.step_in_epoch)
    while True:
        with clock.time("data wait"):
            batch = next(batches)
        with clock.time("compute"):
            losses, scores = learner.train(batch, position.epoch, epoch.step)
            epoch.since.add(losses, scores, batch.rows)
        if progress.finish_step(epoch, batch.global_rows):
            return progress.end_epoch(epoch)
