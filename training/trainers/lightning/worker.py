"""Entry point of a training process: set up the process, open the data, build the module, run Lightning's Trainer."""

from training.attempts.job import TrainingJob
from training.data.dataset import open_columns
from training.recipe import Recipe
from training.trainers.entry import Entry
from training.trainers.lightning.datamodule import build_datamodule
from training.trainers.lightning.fitting import Fitting
from training.trainers.lightning.learner import Learner
from training.trainers.lightning.own_settings import own_settings
from training.trainers.network.building import import_recipe, memory_feed, total_steps
from training.trainers.network.later_replay import ModuleOf, Run, WatchedProgress
from training.trainers.network.progress import Progress
from training.trainers.ranks import Ranks, prepare_process
from training.trainers.rows import training_rows


def run_worker(job: TrainingJob, ranks: Ranks, node: str = "") -> None:
    """Train to the end, as one worker. Raises :class:`TrainingError` if the training can't succeed."""
    entry = Entry.of_worker(job, ranks, node)
    prepare_process(job.settings.scaling.threads_per_worker, own_settings(job.settings).deterministic)
    recipe = import_recipe(job)
    with entry.heartbeat.kept_beating(0):
        columns = open_columns(job.dataset, "train", check_images=False)
    learn, validate = training_rows(columns, job.settings)
    feed = memory_feed(job, columns, learn, ranks)
    total = total_steps(job, feed, learn)
    learner = Learner(recipe, job.dataset, job.settings, ranks)

    def second(again: Recipe) -> tuple[Learner, ModuleOf, Run]:
        new = Learner(again, job.dataset, job.settings, ranks)

        def run(repeated: Progress) -> None:
            Fitting(job, ranks, new, feed, repeated, build_datamodule(again)).run(repeated.resume())

        return new, lambda: new.module, run

    progress = WatchedProgress(
        job, ranks, columns, validate, learner, total, feed.steps_per_epoch, True, entry.heartbeat, entry.fence,
        module=lambda: learner.module,
    )  # fmt: skip
    with entry.heartbeat.kept_beating(0):  # the checkpoint may come from a store
        position = progress.resume()
    entry.note_ready(position.step)
    Fitting(job, ranks, learner, feed, progress, build_datamodule(recipe)).run(position)
    progress.later.after_training(second)
    progress.finish()
