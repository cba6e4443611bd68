"""I4: each training row is used exactly once an epoch."""

import numpy as np

from tasks.verify.evidence import Evidence
from tasks.verify.finding import NoEvidence, Outcome, judged
from tasks.verify.steps import rows_of_epoch
from training.data.sample_order import Rows, checksum
from training.records import EpochMetrics
from training.trainers.base import trainer_named


def used_once(run: Evidence) -> Outcome:
    """The number and the checksum of the rows that each epoch recorded are those that data and settings imply."""
    history, steps = run.trained.history, run.steps
    problems = [] if len(history) == len(steps.epoch_ends) else [
        f"{len(history)} epochs are recorded, there should be {len(steps.epoch_ends)}"
    ]  # fmt: skip
    for row, end in zip(history, steps.epoch_ends, strict=False):
        if row.step != end:
            problems.append(f"epoch {row.epoch} ended after step {row.step}, not {end}")
        problems += _wrong(run, row)
    if (unsure := _unsure(run)) and not problems:
        raise NoEvidence(unsure)
    return judged(
        problems, f"{len(history)} epochs of {history[0].rows:,} rows, checksum {history[0].checksum}"
    )


def _wrong(run: Evidence, row: EpochMetrics) -> list[str]:
    """Problems with the rows of one epoch, as far as the feed allows a check."""
    count = _count(run, row.epoch)
    if row.rows != count:
        return [f"epoch {row.epoch} used {row.rows:,} rows, not {count:,}"]
    if _unsure(run):
        return []
    wanted = checksum(_rows(run, row.epoch))
    return (
        [] if row.checksum == wanted else [f"epoch {row.epoch} used other rows: {row.checksum}, not {wanted}"]
    )


def _count(run: Evidence, epoch: int) -> int:
    settings, steps = run.plan.settings, run.steps.in_epoch(epoch)
    if settings.data.feed != "stream":
        return len(_rows(run, epoch))
    return steps * trainer_named(settings.trainer).rows_per_step(settings, len(run.learn))


def _rows(run: Evidence, epoch: int) -> Rows:
    """Identifiers of an epoch's rows: their numbers, or with feed `stream` the first 8 bytes of their digests."""
    settings = run.plan.settings
    if settings.data.feed != "stream":
        return rows_of_epoch(settings, run.learn, epoch, run.steps.in_epoch(epoch), run.order)
    return run.digests[run.learn].view(np.int64)


def _unsure(run: Evidence) -> str:
    """The reason why only the number of rows can be checked; empty when the rows themselves can be checked."""
    feed, rows = run.plan.settings.data.feed, len(run.learn)
    if feed != "stream":
        return ""
    if all(_count(run, row.epoch) == rows for row in run.trained.history):
        return ""
    counts = ", ".join(sorted({f"{_count(run, row.epoch):,}" for row in run.trained.history}))
    return (
        f"feed {feed} used {counts} of {rows:,} rows an epoch, as expected; the records do not say which rows"
    )
