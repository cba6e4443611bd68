"""Entry point of a LightGBM training process: set up the process, load the rows, run the boosting rounds."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import lightgbm  # noqa: TID253 - imported by processes that train

from training.attempts.fence import Fence
from training.attempts.heartbeat import Heartbeat, furthest_step
from training.attempts.history import Attempt, note
from training.attempts.job import TrainingJob
from training.data.dataset import open_columns
from training.errors import ResourceError, TrainingError, TransientError
from training.trainers.boosting.loop import Loop
from training.trainers.lightgbm.boosting import build_boosting
from training.trainers.lightgbm.trainer import MODEL_FILE
from training.trainers.ranks import Ranks, prepare_process
from training.trainers.rows import training_rows

_OF_COMMUNICATION = ("Socket ", "Binding port")  # how LightGBM's messages of failed connections begin


def run_worker(job: TrainingJob, ranks: Ranks, node: str = "") -> None:
    """Train to the end, as one worker. Raises :class:`TrainingError` if the training can't succeed."""
    began = time.time()
    # Read before the first heartbeat of this attempt, which overwrites those of older attempts.
    reached = furthest_step(job.paths)
    fence = Fence(job.paths.fence, job.attempt, driver=job.driver)
    if ranks.is_first:
        fence = Fence.enter(job.paths, job.attempt, job.driver)
    heartbeat = Heartbeat(job.paths.beats / f"rank-{ranks.rank}.json", job.attempt, ranks.rank, node)
    heartbeat.beat(0)
    prepare_process(job.settings.scaling.threads_per_worker, "off")
    with _explained(ranks):
        with heartbeat.kept_beating(0):
            columns = open_columns(job.dataset, "train")
            learn, validate = training_rows(columns, job.settings)
            boosting = build_boosting(job.dataset, job.settings, columns, learn, validate, ranks)
        loop = Loop(job, ranks, boosting, learn, MODEL_FILE, heartbeat, fence)
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


@contextmanager
def _explained(ranks: Ranks) -> Iterator[None]:
    """Raise LightGBM's errors as errors with a message for the user."""
    try:
        yield
    except lightgbm.basic.LightGBMError as error:
        said = " ".join(str(error).split())
        if "bad_alloc" in said:
            raise ResourceError(
                "Out of memory: LightGBM could not store its rows. Make more memory available and run the same command "
                "again: the training resumes. Or lower training.max_bin, which starts a new run."
            ) from error
        if ranks.distributed and said.startswith(_OF_COMMUNICATION):
            raise TransientError(
                f"a training worker lost the connection to other workers ({said}). Run the same command again: the "
                "training resumes."
            ) from error
        raise TrainingError(f"LightGBM failed: {said}") from error
