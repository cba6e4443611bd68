"""Entry point of a LightGBM training process."""

from collections.abc import Iterator
from contextlib import contextmanager

import lightgbm  # noqa: TID253 - imported by processes that train

from training.attempts.job import TrainingJob
from training.errors import PeerError, ResourceError, TrainingError
from training.trainers.boosting.table_rows import WorkerRows
from training.trainers.boosting.worker import run_rounds
from training.trainers.lightgbm.boosting import LightGBMRounds, build_boosting
from training.trainers.lightgbm.trainer import MODEL_FILE
from training.trainers.ranks import Ranks

_OF_COMMUNICATION = ("Socket ", "Binding port")  # how LightGBM's messages of failed connections begin


def run_worker(job: TrainingJob, ranks: Ranks, node: str = "") -> None:
    """Train to the end, as one worker. Raises :class:`TrainingError` if the training can't succeed."""

    def build(rows: WorkerRows) -> LightGBMRounds:
        return build_boosting(job.dataset, job.settings, rows, ranks)

    run_rounds(job, ranks, node, MODEL_FILE, build, _explained(ranks))


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
            raise PeerError(
                f"a training worker lost the connection to other workers ({said}). Run the same command again: the "
                "training resumes."
            ) from error
        raise TrainingError(f"LightGBM failed: {said}") from error
