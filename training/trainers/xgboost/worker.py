"""Entry point of an XGBoost training process: set up the process, load the rows, run the boosting rounds."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import xgboost  # noqa: TID253 - imported by processes that train

from training.attempts.fence import Fence
from training.attempts.heartbeat import Heartbeat, furthest_step
from training.attempts.history import Attempt, note
from training.attempts.job import TrainingJob
from training.data.dataset import open_columns
from training.errors import ResourceError, TrainingError, TransientError
from training.trainers.boosting.loop import Loop
from training.trainers.ranks import Ranks, prepare_process
from training.trainers.rows import training_rows
from training.trainers.xgboost.boosting import build_boosting
from training.trainers.xgboost.communicator import communicator
from training.trainers.xgboost.trainer import MODEL_FILE

_TRACE = "\nStack trace:"
# Prefix of XGBoost's messages: time, source file and line.
_PLACE = re.compile(r"^(\[[^\]]*\](:| \S+:\d+:)?\s*)+")
# XGBoost reports only a failed communication as a list of failures, each line with source file and line.
_OF_COMMUNICATION = re.compile(r"^- \[[\w.]+:\d+\|[\d:]+\]: ", re.MULTILINE)


def run_worker(job: TrainingJob, ranks: Ranks, node: str = "") -> None:
    """Train to the end, as one worker. Raises :class:`TrainingError` if the training can't succeed."""
    began = time.time()
    # Read before the first heartbeat of this attempt, which overwrites the heartbeats of older attempts.
    reached = furthest_step(job.paths)
    fence = Fence(job.paths.fence, job.attempt, driver=job.driver)
    if ranks.is_first:
        fence = Fence.enter(job.paths, job.attempt, job.driver)
    heartbeat = Heartbeat(job.paths.beats / f"rank-{ranks.rank}.json", job.attempt, ranks.rank, node)
    heartbeat.beat(0)
    prepare_process(job.settings.scaling.threads_per_worker, "off")
    timeout_s = int(job.settings.failure.collective_timeout_s)
    with _explained(ranks), xgboost.config_context(verbosity=0), communicator(ranks, timeout_s):
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
    """Raise XGBoost's errors as errors with a message for the user."""
    try:
        yield
    except xgboost.core.XGBoostError as error:
        message = str(error).partition(_TRACE)[0]
        said = _sentences(message)
        if "bad_alloc" in message:
            raise ResourceError(
                "Out of memory: XGBoost could not store its rows. Make more memory available and run the same command "
                "again: the training resumes. Or lower training.max_bin, which starts a new run."
            ) from error
        if ranks.distributed and _OF_COMMUNICATION.search(message):
            raise TransientError(
                f"a training worker lost the other workers ({said[0]} {said[-1]}). Run the same command again: the "
                "training resumes."
            ) from error
        raise TrainingError(f"XGBoost failed: {said[0]}") from error


def _sentences(message: str) -> list[str]:
    """The lines of XGBoost's message, without times, source files and line numbers."""
    lines = [_PLACE.sub("", line.strip().removeprefix("- ")) for line in message.splitlines()]
    return [line for line in lines if line] or ["no reason given"]
