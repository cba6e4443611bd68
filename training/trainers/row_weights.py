"""How much each row counts in a training: the weights of a table's rows and of classes, scaled to the mean 1."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from training.data.dataset import Columns
from training.data.sample_order import Rows
from training.errors import SettingError
from training.problems.objectives import objective_named, takes_weights
from training.records import DatasetVersion
from training.settings.schema import Settings
from training.settings.sections import ClassWeights, WeighingSettings

Weights = npt.NDArray[np.float64]


def scaled(weights: Weights) -> Weights:
    """`weights` (rows,) divided by their mean, so that the mean of weighted numbers is sum(w x) / sum(w).

    One weight at least must be above 0.
    """
    parts = weights / weights.max()  # the sum of huge weights would be infinite
    return np.asarray(parts * (len(parts) / parts.sum()))


def weighted(
    columns: Columns, learn: Rows, validate: Rows, version: DatasetVersion, settings: Settings
) -> Columns:
    """The train split with weights of mean 1 over the rows `learn`, and of mean 1 over the rows `validate`.

    A row's weight is that of its row, if the table has weights, times that of its class, if classes have weights.

    With these, the sum of weighted losses over all rows of an epoch, divided by the number of rows, is
    sum(w * loss) / sum(w); the divisor of a step is its number of rows, which all workers know. A division by the sum
    of a step's weights would count a row more that comes among rows of small weights, and be undefined for a step
    whose weights are all 0. Returns `columns` if all rows count the same.

    Raises :class:`SettingError` if the weights of `learn`, or those of `validate`, are all 0.
    """
    of_classes = class_weights(columns.targets[learn], version.classes, class_weights_of(settings))
    if columns.weights is None and of_classes is None:
        return columns
    of_rows = np.ones(len(columns)) if columns.weights is None else columns.weights
    whole = of_rows if of_classes is None else of_rows * of_classes[columns.targets]
    made = np.zeros(len(columns))
    for rows, use in ((learn, "to learn from"), (validate, "to validate on")):
        if not whole[rows].any():
            raise SettingError(
                f"data.validation_share: the weights of all {len(rows)} rows {use} are 0; change the share, or the "
                "weights"
            )
        made[rows] = scaled(whole[rows])
    return replace(columns, weights=made)


def class_weights(
    labels: npt.NDArray[np.int64], classes: tuple[str, ...], chosen: ClassWeights
) -> Weights | None:
    """The weight of each class of `classes`, as `training.class_weights` says; None: no weights.

    "balanced" is rows / (classes x rows of the class), of the numbers of classes `labels`, as in scikit-learn's
    `compute_class_weight`. Classes without rows do not count there; they get the weight of a class with one row, as
    rows for validation may have them.
    """
    if chosen is None:
        return None
    if chosen == "balanced":
        counts = np.bincount(labels, minlength=len(classes))
        return np.asarray(len(labels) / ((counts > 0).sum() * np.maximum(counts, 1)))
    by_name = dict(chosen)
    return np.array([by_name.get(name, 1.0) for name in classes])


def class_weights_of(settings: Settings) -> ClassWeights:
    """The setting `training.class_weights`; None for a trainer without it."""
    training = settings.training
    return training.class_weights if isinstance(training, WeighingSettings) else None


def check_weights(settings: Settings, version: DatasetVersion) -> None:
    """Raise :class:`SettingError` for weights of rows or classes that the training would ignore.

    Also for a class that the dataset does not have. The classes of `version` may be missing: `plan` checks before the
    rows are prepared.
    """
    of_classes = class_weights_of(settings)
    if of_classes is not None:
        if objective_named(version.problem).target != "class" or not takes_weights(version.problem):
            raise SettingError(
                f"training.class_weights: a {version.problem} has no classes to weigh; remove the setting"
            )
        named = [] if of_classes == "balanced" or not version.classes else [name for name, _ in of_classes]
        if absent := [name for name in named if name not in version.classes]:
            raise SettingError(
                f"training.class_weights: no class {absent[0]!r}; the dataset has {', '.join(version.classes)}"
            )
    of_rows = None if version.table is None else version.table.weight
    if of_rows is not None:
        name = f"Table(weight={of_rows!r})"
        if not isinstance(settings.training, WeighingSettings):
            raise SettingError(
                f"{name}: trainer {settings.trainer} takes no weights of rows; use XGBoost(), LightGBM() or "
                "Torch(build_model), or leave weight= out"
            )
        if not takes_weights(version.problem):
            raise SettingError(
                f"{name}: the problem {version.problem} takes no weights of rows; leave weight= out"
            )
    if settings.data.feed == "stream" and (of_rows is not None or of_classes is not None):
        name = "training.class_weights" if of_rows is None else f"Table(weight={of_rows!r})"
        raise SettingError(f"data.feed: stream carries no weights of rows, which {name} gives; use memory")
