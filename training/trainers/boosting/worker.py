"""What a training process of boosted trees does: set up the process, load the rows, run the boosting rounds."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from training.attempts.job import TrainingJob
from training.trainers.boosting.loop import Loop
from training.trainers.boosting.rounds import Boosting, Model
from training.trainers.boosting.table_rows import WorkerRows, worker_rows
from training.trainers.entry import Entry
from training.trainers.ranks import Ranks, prepare_process

Build = Callable[[WorkerRows], Boosting[Model]]


def run_rounds(
    job: TrainingJob,
    ranks: Ranks,
    node: str,
    model_file: str,
    build: Build[Model],
    communication: AbstractContextManager[None],
) -> None:
    """Train to the end, as one worker.

    `build` stores this worker's rows to learn from and for validation in the library's own form, within the context
    `communication`, which lasts as long as the training. Raises the errors of :func:`worker_rows`.
    """
    entry = Entry.of_worker(job, ranks, node)
    prepare_process(job.settings.scaling.threads_per_worker, "off")
    with communication:
        with entry.heartbeat.kept_beating(0):
            rows = worker_rows(job, ranks, entry.heartbeat)
            boosting, count, checksum = build(rows), rows.count, rows.checksum
            del rows  # the training keeps only what the library has stored
        loop = Loop(job, ranks, boosting, count, checksum, model_file, entry.heartbeat, entry.fence)
        with entry.heartbeat.kept_beating(0):  # the checkpoint may come from a store
            start = loop.resume()
        entry.note_ready(start.round, loop.device)
        loop.run(start)
