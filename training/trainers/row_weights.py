"""How much each row counts in a training: the weights of a table's rows, scaled to the mean 1."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from training.data.dataset import Columns
from training.data.sample_order import Rows
from training.errors import SettingError
from training.problems.objectives import takes_weights
from training.records import DatasetVersion
from training.settings.schema import Settings

Weights = npt.NDArray[np.float64]


def scaled(weights: Weights) -> Weights:
    """`weights` (rows,) divided by their mean, so that the mean of weighted numbers is sum(w x) / sum(w).

    One weight at least must be above 0.
    """
    parts = weights / weights.max()  # the sum of huge weights would be infinite
    return np.asarray(parts * (len(parts) / parts.sum()))


def weighted(columns: Columns, learn: Rows, validate: Rows) -> Columns:
    """The train split with weights of mean 1 over the rows `learn`, and of mean 1 over the rows `validate`.

    With these, the sum of weighted losses over all rows of an epoch, divided by the number of rows, is
    sum(w * loss) / sum(w); the divisor of a step is its number of rows, which all workers know. A division by the sum
    of a step's weights would count a row more that comes among rows of small weights, and be undefined for a step
    whose weights are all 0. Returns `columns` if all rows count the same.

    Raises :class:`SettingError` if the weights of `learn`, or those of `validate`, are all 0.
    """
    if columns.weights is None:
        return columns
    made = np.zeros(len(columns))
    for rows, use in ((learn, "to learn from"), (validate, "to validate on")):
        own = columns.weights[rows]
        if not own.any():
            raise SettingError(
                f"data.validation_share: the weights of all {len(rows)} rows {use} are 0; change the share, or the "
                "weights"
            )
        made[rows] = scaled(own)
    return replace(columns, weights=made)


def check_weights(settings: Settings, version: DatasetVersion) -> None:
    """Raise :class:`SettingError` if the dataset's rows have weights that the training would ignore."""
    if version.table is None or version.table.weight is None:
        return
    name = f"Table(weight={version.table.weight!r})"
    if not settings.training.WEIGHS_ROWS:
        raise SettingError(
            f"{name}: trainer {settings.trainer} takes no weights of rows; use XGBoost(), LightGBM() or "
            "Torch(build_model), or leave weight= out"
        )
    if not takes_weights(version.problem):
        raise SettingError(
            f"{name}: the problem {version.problem} takes no weights of rows; leave weight= out"
        )
    if settings.data.feed == "stream":
        raise SettingError(f"data.feed: stream carries no weights of rows, and there is {name}; use memory")
