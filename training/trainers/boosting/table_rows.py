"""One worker's rows of a table for boosted trees, from memory-mapped columns or from Ray Data."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from training.attempts.heartbeat import Heartbeat
from training.attempts.job import TrainingJob
from training.data.dataset import Columns, open_columns
from training.data.sample_order import Rows, checksum
from training.errors import TrainingError, TransientError
from training.trainers.boosting.ray_shards import LEARN, VALIDATION, InputsAndTargets, Shard, open_shard
from training.trainers.long_work import LongWork
from training.trainers.ranks import Ranks
from training.trainers.row_weights import Weights, weighted
from training.trainers.rows import training_rows


@dataclass(frozen=True)
class WorkerRows:
    """The rows of one worker: inputs, float32 (rows, columns), targets, and weights (None: all rows count the same).

    Each call of `rows_to_learn` and `validation_rows` copies the rows, so that a library can store these in its own
    form one after the other. `count` is the number of rows that all workers together learn from, and `checksum` that of
    their numbers, see :func:`training.data.sample_order.checksum`.
    """

    rows_to_learn: Callable[[], InputsAndTargets]
    validation_rows: Callable[[], InputsAndTargets]
    count: int
    checksum: int
    weights_to_learn: Weights | None = None
    validation_weights: Weights | None = None


def worker_rows(job: TrainingJob, ranks: Ranks, heartbeat: Heartbeat) -> WorkerRows:
    """The rows of this worker, as `data.feed` says; all workers take part.

    Raises :class:`TrainingError` if there are fewer rows to learn from, or for validation, than workers. With the feed
    `stream`, raises :class:`TransientError` if rows are missing, or, on several workers, if no block of rows has
    reached any worker for `failure.collective_timeout_s` seconds. A single worker waits without limit.
    """
    if job.feed != "stream":
        columns = open_columns(job.dataset, "train")
        learned, kept_back = training_rows(columns, job.settings)
        columns = weighted(columns, learned, kept_back, job.dataset, job.settings)
        return rows_of_columns(columns, learned, kept_back, ranks)
    long_work = LongWork(ranks, heartbeat, job.settings.failure.collective_timeout_s)
    learn, validate = (
        long_work.on_all(partial(open_shard, name, job.dataset, heartbeat.add_moved))
        for name in (LEARN, VALIDATION)
    )
    return rows_of_shards(job, ranks, learn, validate)


def rows_of_columns(columns: Columns, learn: Rows, validate: Rows, ranks: Ranks) -> WorkerRows:
    """Every `world_size`-th of the rows `learn` and `validate` of memory-mapped columns.

    Raises :class:`TrainingError` if there are fewer rows to learn from, or for validation, than workers.
    """
    _check_counts(len(learn), len(validate), ranks, columns.validation is not None)
    mine = slice(ranks.rank, None, ranks.world_size)
    return WorkerRows(
        lambda: (columns.inputs[learn[mine]], columns.targets[learn[mine]]),
        lambda: (columns.inputs[validate[mine]], columns.targets[validate[mine]]),
        len(learn),
        checksum(learn),
        None if columns.weights is None else columns.weights[learn[mine]],
        None if columns.weights is None else columns.weights[validate[mine]],
    )


def rows_of_shards(job: TrainingJob, ranks: Ranks, learn: Shard, validate: Shard) -> WorkerRows:
    """The rows of this worker's shards. Their digests stand for row numbers, as Ray Data numbers no rows.

    Raises :class:`TrainingError` if there are fewer rows to learn from, or for validation, than workers, and
    :class:`TransientError` unless all workers together have all rows of the train split.
    """
    count, kept_back, total = map(int, ranks.add_up(learn.rows, validate.rows, learn.checksum))
    if count + kept_back != job.dataset.rows("train"):
        raise TransientError(
            f"data.feed=stream: Ray Data gave the workers {count + kept_back:,} rows of {job.dataset.rows('train'):,}; "
            "the next attempt reads the rows again."
        )
    _check_counts(count, kept_back, ranks, job.dataset.validation_rows is not None)
    return WorkerRows(learn.read, validate.read, count, total)


def _check_counts(learn: int, validate: int, ranks: Ranks, marked: bool) -> None:
    if min(learn, validate) < ranks.world_size:
        more = "more validation rows in the source" if marked else "a larger data.validation_share"
        raise TrainingError(
            f"scaling.num_workers: {ranks.world_size} workers need a row each to learn from and one for validation, "
            f"of {learn} and {validate} rows; use fewer workers or {more}."
        )
