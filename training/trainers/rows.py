"""The rows of a train split: those to learn from, those kept back for validation, and the rows of each step."""

import numpy as np

from training.data.dataset import Columns, is_validation
from training.data.sample_order import Rows, SampleOrder
from training.errors import SettingError
from training.settings.schema import Settings


def training_rows(columns: Columns, settings: Settings) -> tuple[Rows, Rows]:
    """Row numbers of the train split: the rows to learn from, and the rows kept back for validation.

    Raises :class:`SettingError` if fewer than 2 rows per worker are left to learn from, or none to validate on.
    """
    kept_back = columns.validation
    if kept_back is None:
        kept_back = is_validation(columns.digests, settings.data.validation_share)
    learn, validate = np.flatnonzero(~kept_back), np.flatnonzero(kept_back)
    workers = max(1, settings.scaling.num_workers)
    if len(learn) < 2 * workers or not len(validate):
        raise SettingError(
            f"data.validation_share: {len(columns)} training rows are divided into {len(learn)} to learn from and "
            f"{len(validate)} to validate on; {workers} workers need at least {2 * workers} and 1. Add rows or change "
            + ("the share." if columns.validation is None else "data.validation_split.")
        )
    return learn, validate


def order_of(settings: Settings, rows: int, rows_per_step: int) -> SampleOrder:
    """The order in which a training uses `rows` rows to learn from, with `rows_per_step` rows in a step."""
    workers = max(1, settings.scaling.num_workers)
    parts = settings.training.fixed_parts or workers
    # A step has at least two rows for each part, so half as many parts as passes give each pass at least one row.
    halves = -(-workers * settings.training.fixed_passes // 2)
    return SampleOrder(rows, rows_per_step, settings.seed, max(parts, halves))
