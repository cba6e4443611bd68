"""What a training process of boosted trees does: set up the process, load the rows, run the boosting rounds."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from training.attempts.job import TrainingJob
from training.data.dataset import Columns, open_columns
from training.data.sample_order import Rows
from training.errors import TrainingError
from training.trainers.boosting.loop import Loop
from training.trainers.boosting.rounds import Boosting, Model
from training.trainers.entry import Entry
from training.trainers.ranks import Ranks, prepare_process
from training.trainers.rows import training_rows

Build = Callable[[Columns, Rows, Rows], Boosting[Model]]


def run_rounds(
    job: TrainingJob,
    ranks: Ranks,
    node: str,
    model_file: str,
    build: Build[Model],
    communication: AbstractContextManager[None],
) -> None:
    """Train to the end, as one worker.

    `build(columns, learn, validate)` loads this worker's share of the rows to learn from and for validation, within the
    context `communication`, which lasts as long as the training. Raises :class:`TrainingError` if there are fewer rows
    to learn from, or for validation, than workers.
    """
    entry = Entry.of_worker(job, ranks, node)
    prepare_process(job.settings.scaling.threads_per_worker, "off")
    with communication:
        with entry.heartbeat.kept_beating(0):
            columns = open_columns(job.dataset, "train")
            learn, validate = training_rows(columns, job.settings)
            check_rows(learn, validate, ranks)
            boosting = build(columns, learn, validate)
        loop = Loop(job, ranks, boosting, learn, model_file, entry.heartbeat, entry.fence)
        with entry.heartbeat.kept_beating(0):  # the checkpoint may come from a store
            start = loop.resume()
        entry.note_ready(start.round, loop.device)
        loop.run(start)


def check_rows(learn: Rows, validate: Rows, ranks: Ranks) -> None:
    """Raise :class:`TrainingError` if there are fewer rows to learn from, or for validation, than workers."""
    if min(len(learn), len(validate)) < ranks.world_size:
        raise TrainingError(
            f"scaling.num_workers: {ranks.world_size} workers need a row each to learn from and one for validation, "
            f"of {len(learn)} and {len(validate)} rows; use fewer workers or a larger data.validation_share."
        )
