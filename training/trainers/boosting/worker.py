"""What a training process of boosted trees does: set up the process, load the rows, run the boosting rounds."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from training.attempts.fence import Fence
from training.attempts.heartbeat import Heartbeat, furthest_step
from training.attempts.history import Attempt, note
from training.attempts.job import TrainingJob
from training.data.dataset import Columns, open_columns
from training.data.sample_order import Rows
from training.errors import TrainingError
from training.trainers.boosting.loop import Loop
from training.trainers.boosting.rounds import Boosting, Model
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
    began = time.time()
    # Read before the first heartbeat of this attempt, which overwrites those of older attempts.
    reached = furthest_step(job.paths)
    fence = Fence(job.paths.fence, job.attempt, driver=job.driver)
    if ranks.is_first:
        fence = Fence.enter(job.paths, job.attempt, job.driver)
    heartbeat = Heartbeat(job.paths.beats / f"rank-{ranks.rank}.json", job.attempt, ranks.rank, node)
    heartbeat.beat(0)
    prepare_process(job.settings.scaling.threads_per_worker, "off")
    with communication:
        with heartbeat.kept_beating(0):
            columns = open_columns(job.dataset, "train")
            learn, validate = training_rows(columns, job.settings)
            check_rows(learn, validate, ranks)
            boosting = build(columns, learn, validate)
        loop = Loop(job, ranks, boosting, learn, model_file, heartbeat, fence)
        with heartbeat.kept_beating(0):  # the checkpoint may come from a store
            reached_block = loop.resume()
        if ranks.is_first:
            attempt = Attempt(
                number=fence.number,
                group=fence.group,
                began=began,
                ready=time.time(),
                world_size=ranks.world_size,
                device=loop.device,
                first_step=reached_block.round,
                reached=max(reached, reached_block.round),
            )
            note(job.paths.attempts, attempt)
        loop.run(reached_block)


def check_rows(learn: Rows, validate: Rows, ranks: Ranks) -> None:
    """Raise :class:`TrainingError` if there are fewer rows to learn from, or for validation, than workers."""
    if min(len(learn), len(validate)) < ranks.world_size:
        raise TrainingError(
            f"scaling.num_workers: {ranks.world_size} workers need a row each to learn from and one for validation, "
            f"of {len(learn)} and {len(validate)} rows; use fewer workers or a larger data.validation_share."
        )
