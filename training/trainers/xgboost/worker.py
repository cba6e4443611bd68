"""Entry point of an XGBoost training process."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import xgboost  # noqa: TID253 - imported by processes that train

from training.attempts.job import TrainingJob
from training.errors import PeerError, ResourceError, TrainingError
from training.trainers.boosting.table_rows import WorkerRows
from training.trainers.boosting.worker import run_rounds
from training.trainers.ranks import Ranks
from training.trainers.xgboost.boosting import XGBoostRounds, build_boosting
from training.trainers.xgboost.communicator import communicator
from training.trainers.xgboost.trainer import MODEL_FILE

_TRACE = "\nStack trace:"
# Prefix of XGBoost's messages: time, source file and line.
_PLACE = re.compile(r"^(\[[^\]]*\](:| \S+:\d+:)?\s*)+")
# XGBoost reports only a failed communication as a list of failures, each line with source file and line.
_OF_COMMUNICATION = re.compile(r"^- \[[\w.]+:\d+\|[\d:]+\]: ", re.MULTILINE)


def run_worker(job: TrainingJob, ranks: Ranks, node: str = "") -> None:
    """Train to the end, as one worker. Raises :class:`TrainingError` if the training can't succeed."""
    timeout_s = int(job.settings.failure.collective_timeout_s)

    def build(rows: WorkerRows) -> XGBoostRounds:
        return build_boosting(job.dataset, job.settings, rows, ranks)

    run_rounds(job, ranks, node, MODEL_FILE, build, _communication(ranks, timeout_s))


@contextmanager
def _communication(ranks: Ranks, timeout_s: int) -> Iterator[None]:
    with _explained(ranks), xgboost.config_context(verbosity=0), communicator(ranks, timeout_s):
        yield


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
            raise PeerError(
                f"a training worker lost the other workers ({said[0]} {said[-1]}). Run the same command again: the "
                "training resumes."
            ) from error
        raise TrainingError(f"XGBoost failed: {said[0]}") from error


def _sentences(message: str) -> list[str]:
    """The lines of XGBoost's message, without times, source files and line numbers."""
    lines = [_PLACE.sub("", line.strip().removeprefix("- ")) for line in message.splitlines()]
    return [line for line in lines if line] or ["no reason given"]
