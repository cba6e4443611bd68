"""Entry point of a training process: set up the process, open the data, call the recipe's training loop."""

from collections.abc import Callable

from training.attempts.job import TrainingJob
from training.data.class_balance import balanced_order
from training.data.dataset import Columns, open_columns
from training.data.sample_order import Rows
from training.errors import SettingError, TrainingError
from training.recipe import Recipe
from training.trainers.accelerate.own_settings import own_settings
from training.trainers.accelerate.training_loop import LoopState, TrainingLoop
from training.trainers.entry import Entry
from training.trainers.network.accelerate_state import new_accelerate
from training.trainers.network.building import import_recipe, memory_feed, total_steps
from training.trainers.network.feeds import MemoryFeed
from training.trainers.network.later_replay import ModuleOf, Run, WatchedProgress
from training.trainers.network.own_settings import network_settings
from training.trainers.network.progress import Progress
from training.trainers.ranks import Ranks, prepare_process
from training.trainers.rows import order_of, training_rows

_AHEAD = 2  # batches that a thread reads ahead for a GPU


def run_worker(job: TrainingJob, ranks: Ranks, node: str = "") -> None:
    """Train to the end, as one worker. Raises :class:`TrainingError` if the training can't succeed."""
    entry = Entry.of_worker(job, ranks, node)
    prepare_process(job.settings.scaling.threads_per_worker, network_settings(job.settings).deterministic)
    recipe = import_recipe(job)
    with entry.heartbeat.kept_beating(0):
        columns = open_columns(job.dataset, "train", check_images=False)
    learn, validate = training_rows(columns, job.settings)
    feed = _feed(job, columns, learn, ranks)
    state = LoopState(recipe, job.dataset, job.settings, ranks)
    progress = WatchedProgress(
        job, ranks, columns, validate, state, total_steps(job, feed, learn), feed.steps_per_epoch, True,
        entry.heartbeat, entry.fence, module=lambda: state.model,
    )  # fmt: skip

    def second(again: Recipe) -> tuple[LoopState, ModuleOf, Run]:
        new = LoopState(again, job.dataset, job.settings, ranks)

        def run(repeated: Progress) -> None:
            _train_of(again)(TrainingLoop(entry, again, feed, new, repeated, is_first=False))

        return new, lambda: new.model, run

    with new_accelerate(ranks):
        _train_of(recipe)(TrainingLoop(entry, recipe, feed, state, progress))
    done = progress.history[-1].step if progress.history else 0
    if done < progress.total_steps:
        raise TrainingError(
            f"recipe {recipe.name}: train(loop) returned after {done} of {progress.total_steps} steps; iterate over "
            "loop.epochs() to the end"
        )
    progress.later.after_training(second, lambda: new_accelerate(ranks))
    progress.finish()


def _feed(job: TrainingJob, columns: Columns, learn: Rows, ranks: Ranks) -> MemoryFeed:
    """The feed of this worker. Raises the errors of :func:`memory_feed` and :func:`balanced_order`."""
    settings = own_settings(job.settings)
    if not settings.balance_classes:
        return memory_feed(job, columns, learn, ranks)
    plain = order_of(job.settings, len(learn), settings.global_batch_size)
    order = balanced_order(columns.targets[learn], job.dataset.classes, plain)  # all steps have whole batches
    return MemoryFeed(columns, learn, order, ranks, ahead=_AHEAD if ranks.device.type == "cuda" else 0)


def _train_of(recipe: Recipe) -> Callable[[TrainingLoop], None]:
    """The recipe's training loop. Raises :class:`SettingError` if the recipe has none."""
    train: Callable[[TrainingLoop], None] | None = getattr(recipe.trainer, "train", None)
    if train is None:
        raise SettingError(
            f"recipe {recipe.name}: its trainer has no training loop; use trainer=Accelerate(train)"
        )
    return train
