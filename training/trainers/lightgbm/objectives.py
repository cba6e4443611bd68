"""What LightGBM minimises for each objective of a problem that it can learn, and how Evergreen scores its predictions.

LightGBM evaluates each worker's rows by themselves, so the sums over all workers are computed here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from training.errors import SettingError
from training.problems.objectives import objective_named
from training.records import DatasetVersion

Numbers = npt.NDArray[np.float64]
NO_METRIC = "none"
_TINY = 1e-15  # smallest probability of a loss, as in LightGBM's own metrics


@dataclass(frozen=True)
class LightGBMObjective:
    """LightGBM's objective `name`.

    `outputs` converts raw predictions, as LightGBM converts those of the rows to learn from; both have the shape
    (rows, outputs). `sums` gives the sums of the loss and of the metric over rows, from converted predictions, targets
    (rows,) and weights (rows,; None: each row counts 1); `results` gives (loss, metric) from the means over the rows of
    all workers. `per_class`: whether a round adds a tree for each class. `metric` is LightGBM's name of the mean of
    both sums, if they are equal: LightGBM then evaluates faster than NumPy.
    """

    name: str
    outputs: Callable[[Numbers], Numbers]
    sums: Callable[[Numbers, Numbers, Numbers | None], tuple[float, float]]
    results: Callable[[float, float], tuple[float, float]]
    per_class: bool = False
    metric: str = NO_METRIC

    def parameters(self, version: DatasetVersion) -> dict[str, Any]:
        """Parameters of a booster: objective, number of classes, metric."""
        classes = {"num_class": len(version.classes)} if self.per_class else {}
        return {"objective": self.name, **classes, "metric": self.metric}


def probabilities(raw: Numbers) -> Numbers:
    """Softmax over the outputs (rows, classes), as LightGBM computes it for objective `multiclass`."""
    shifted = np.exp(raw - raw.max(axis=1, keepdims=True))
    softmax: Numbers = shifted / shifted.sum(axis=1, keepdims=True)
    return softmax


def _unchanged(raw: Numbers) -> Numbers:
    return raw


def _sum(values: npt.NDArray[Any], weights: Numbers | None) -> float:
    return float(values.sum() if weights is None else (values * weights).sum())


def _classes(shares: Numbers, targets: Numbers, weights: Numbers | None) -> tuple[float, float]:
    wanted = targets.astype(np.int64)
    likely = np.maximum(shares[np.arange(len(shares)), wanted], _TINY)
    return _sum(-np.log(likely), weights), _sum(shares.argmax(axis=1) == wanted, weights)


def _squares(predicted: Numbers, targets: Numbers, weights: Numbers | None) -> tuple[float, float]:
    total = _sum(np.square(predicted[:, 0] - targets), weights)
    return total, total


# By loss and metric of the problem's objective, see :class:`training.problems.objectives.Objective`.
OBJECTIVES: Mapping[tuple[str, str], LightGBMObjective] = {
    # In nats. Softmax for two classes, too, so that each model gives probabilities (rows, classes).
    ("cross_entropy", "accuracy"): LightGBMObjective(
        name="multiclass",
        outputs=probabilities,
        sums=_classes,
        results=lambda loss, right: (loss, right),
        per_class=True,
    ),
    ("squared_error", "rmse"): LightGBMObjective(
        name="regression",
        outputs=_unchanged,
        sums=_squares,
        results=lambda loss, _: (loss, float(np.sqrt(loss))),
        metric="l2",
    ),
}


def objective_of(version: DatasetVersion) -> LightGBMObjective:
    """LightGBM's objective for a dataset's problem. Raises :class:`SettingError` if LightGBM has none."""
    wanted = objective_named(version.problem)
    try:
        return OBJECTIVES[wanted.loss, wanted.metric]
    except KeyError:
        raise SettingError(
            f"trainer lightgbm can't learn the problem {version.problem}: it minimises {wanted.loss} and reports "
            f"{wanted.metric}; use another trainer, such as Torch(build_model)"
        ) from None
