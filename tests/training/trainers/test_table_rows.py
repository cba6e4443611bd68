"""The rows that workers of boosted trees take from their shards of Ray Data, together."""

import numpy as np
import pytest
import torch
from boosted_tables import boosted_job, bundled

from training.attempts.job import TrainingJob
from training.errors import TrainingError, TransientError
from training.storage.paths import Home
from training.trainers.boosting.ray_shards import InputsAndTargets, Shard
from training.trainers.boosting.table_rows import rows_of_shards
from training.trainers.ranks import Ranks

ONE = Ranks(0, 1, torch.device("cpu"), distributed=False)


@pytest.fixture
def job(home: Home) -> TrainingJob:
    return boosted_job(home, bundled(home, "regression"), workers=1, data={"feed": "stream"})


def shard(rows: int) -> Shard:
    def read() -> InputsAndTargets:
        return np.ones((rows, 10), np.float32), np.ones(rows)

    return Shard(rows, 10 * rows, read)


def test_all_rows_are_counted(job: TrainingJob) -> None:
    learn, validate = shard(job.dataset.rows("train") - 40), shard(40)
    rows = rows_of_shards(job, ONE, learn, validate)
    assert (rows.count, rows.checksum) == (learn.rows, learn.checksum)
    assert (rows.rows_to_learn, rows.validation_rows) == (learn.read, validate.read)


def test_missing_rows_are_noticed(job: TrainingJob) -> None:
    of = job.dataset.rows("train")
    with pytest.raises(TransientError, match=rf"gave the workers {of - 1} rows of {of}; the next attempt"):
        rows_of_shards(job, ONE, shard(of - 41), shard(40))


@pytest.mark.parametrize(
    ("marked", "remedy"),
    [(None, r"a larger data\.validation_share"), (1, "more validation rows in the source")],
)
def test_each_worker_needs_a_row(job: TrainingJob, marked: int | None, remedy: str) -> None:
    marked_job = job.model_copy(
        update={"dataset": job.dataset.model_copy(update={"validation_rows": marked})}
    )
    two = Ranks(0, 2, torch.device("cpu"), distributed=False)
    with pytest.raises(TrainingError, match=rf"scaling\.num_workers: .* and 1 rows; .* {remedy}"):
        rows_of_shards(marked_job, two, shard(job.dataset.rows("train") - 1), shard(1))
