"""The objective and the metrics of XGBoost for each problem's objective that XGBoost supports."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from training.errors import SettingError
from training.problems.objectives import objective_named
from training.records import DatasetVersion


@dataclass(frozen=True)
class XGBoostObjective:
    """XGBoost's objective `name`, and the metrics `evaluated` by XGBoost, from which `results` gives (loss, metric).

    `per_class`: whether a round adds a tree for each class. `record` is the field of a model file that holds the
    objective's parameters.
    """

    name: str
    record: str
    evaluated: tuple[str, ...]
    results: Callable[[Mapping[str, float]], tuple[float, float]]
    per_class: bool = False

    def parameters(self, version: DatasetVersion) -> dict[str, Any]:
        """Parameters of a booster: objective, number of classes, metrics to evaluate."""
        classes = {"num_class": len(version.classes)} if self.per_class else {}
        return {"objective": self.name, **classes, "eval_metric": list(self.evaluated)}


# By names of the loss and the metric of a problem's objective, see :class:`training.problems.objectives.Objective`.
OBJECTIVES: Mapping[tuple[str, str], XGBoostObjective] = {
    # The loss is in nats. Softmax also for two classes, so that each model gives probabilities (rows, classes).
    ("cross_entropy", "accuracy"): XGBoostObjective(
        name="multi:softprob",
        record="softmax_multiclass_param",
        evaluated=("mlogloss", "merror"),
        results=lambda values: (values["mlogloss"], 1 - values["merror"]),
        per_class=True,
    ),
    ("squared_error", "rmse"): XGBoostObjective(
        name="reg:squarederror",
        record="reg_loss_param",
        evaluated=("rmse",),
        results=lambda values: (values["rmse"] ** 2, values["rmse"]),
    ),
}


def objective_of(version: DatasetVersion) -> XGBoostObjective:
    """XGBoost's objective for a dataset's problem. Raises :class:`SettingError` if XGBoost has none."""
    wanted = objective_named(version.problem)
    try:
        return OBJECTIVES[wanted.loss, wanted.metric]
    except KeyError:
        raise SettingError(
            f"trainer xgboost can't learn the problem {version.problem}: it minimises {wanted.loss} and reports "
            f"{wanted.metric}; use another trainer, such as Torch(build_model)"
        ) from None
