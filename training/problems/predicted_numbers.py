"""What problems share that predict one number for each row: a check of the predictions, and the worst rows."""

import numpy as np
import numpy.typing as npt

from training.errors import TrainingError
from training.problems.base import Predictions
from training.problems.skewed_means import Numbers
from training.records import LargestError

WORST = 24


def check_numbers(targets: Numbers, predictions: Predictions) -> None:
    """Check shapes and values.

    Raises :class:`TrainingError` when a prediction is NaN or infinite, and ValueError when shapes or targets are
    impossible.
    """
    if targets.ndim != 1 or not len(targets) or not np.isfinite(targets).all():
        raise ValueError(f"targets must be one or more finite numbers in a row, got shape {targets.shape}")
    if predictions.shape != targets.shape:
        raise ValueError(f"predictions must have shape {targets.shape}, got {predictions.shape}")
    broken = np.flatnonzero(~np.isfinite(predictions))
    if len(broken):
        raise TrainingError(
            f"test row {broken[0]}: the model's prediction is not finite ({len(broken)} of {len(predictions)} rows). "
            "Its weights or activations overflowed: lower training.learning_rate, set training.clip_norm, or use "
            "training.precision=float32."
        )


def largest_of(
    errors: Numbers, targets: Numbers, predictions: npt.NDArray[np.float32], limit: int = WORST
) -> tuple[LargestError, ...]:
    """At most `limit` rows by descending error, then by row number; without rows whose error is 0."""
    rows = np.argsort(-errors, kind="stable")[:limit]
    return tuple(
        LargestError(row=row, truth=float(targets[row]), predicted=float(predictions[row]))
        for row in rows.tolist()
        if errors[row] > 0
    )
