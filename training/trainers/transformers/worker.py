"""Entry point of a training process: set up the process, open the data, build the model, run Transformers' Trainer."""

import logging

from training.attempts.job import TrainingJob
from training.data.dataset import open_columns
from training.recipe import Recipe
from training.trainers.entry import Entry
from training.trainers.network.accelerate_state import new_accelerate
from training.trainers.network.building import import_recipe, memory_feed, total_steps
from training.trainers.network.fine_tuning import initial_weights
from training.trainers.network.later_replay import ModuleOf, Run, WatchedProgress
from training.trainers.network.progress import Progress
from training.trainers.ranks import Ranks, prepare_process
from training.trainers.rows import training_rows
from training.trainers.transformers.fitting import Fitting
from training.trainers.transformers.learner import Learner
from training.trainers.transformers.own_settings import own_settings

log = logging.getLogger("evergreen.initial_weights")


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
    learner = Learner(recipe, job.dataset, job.settings, ranks, initial_weights(job))

    def second(again: Recipe) -> tuple[Learner, ModuleOf, Run]:
        new = Learner(again, job.dataset, job.settings, ranks, initial_weights(job))

        def run(repeated: Progress) -> None:
            Fitting(job, ranks, new, feed, repeated).run(repeated.resume())

        return new, lambda: new.model, run

    if ranks.is_first and learner.started.new:
        log.info("training starts these tensors with new weights: %s", ", ".join(learner.started.new))
    progress = WatchedProgress(
        job, ranks, columns, validate, learner, total, feed.steps_per_epoch, True, entry.heartbeat, entry.fence,
        check_weights=learner.started.check, module=lambda: learner.model,
    )  # fmt: skip
    with entry.heartbeat.kept_beating(0):  # the checkpoint may come from a store
        position = progress.resume()
    entry.note_ready(position.step)
    with new_accelerate(ranks):
        Fitting(job, ranks, learner, feed, progress).run(position)
    progress.later.after_training(second, lambda: new_accelerate(ranks))
    progress.finish()
