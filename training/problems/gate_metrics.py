"""Which metric the gate compares models by: that of `gate.metric` or of the champion, or chosen by the classes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from training.errors import SettingError
from training.percentages import percent_text
from training.problems.base import Predictions, Targets, Weights
from training.problems.row_metrics import CLASS_METRICS, NUMBER_METRICS, ROW_METRICS, ClassRows, RowMetric
from training.problems.skewed_means import Numbers
from training.problems.thresholds import predicted_classes
from training.records import DatasetVersion, GateMetric, MetricValue, ProblemName
from training.settings.schema import GateSettings

# Compared without numbers of the rows: by counts of right rows, and by squared errors.
_OWN = {"classification": "accuracy", "regression": "squared"}
_METRICS: Mapping[ProblemName, Mapping[str, RowMetric]] = {
    "classification": CLASS_METRICS,
    "regression": NUMBER_METRICS,
}
_RARE = 0.1
# These are no means of numbers that rows have by themselves, so a weight can't multiply a row's number.
_WITHOUT_WEIGHTS = ("balanced_accuracy", "auc", "f1")
_MEANS = tuple(name for name in CLASS_METRICS if name not in _WITHOUT_WEIGHTS)


def is_own(metric: GateMetric | None, problem: ProblemName) -> bool:
    """Whether `metric` is that by which the problem's models are compared without `gate.metric`."""
    return metric is None or metric.name == _OWN.get(problem)


def metric_for(settings: GateSettings, version: DatasetVersion, kept: GateMetric | None) -> GateMetric | None:
    """The metric by which the gate compares models of this dataset; None for a problem that has a single one.

    `kept` is the metric by which the champion was judged: it stays while the champion reigns, unless `gate.metric`
    sets another. Otherwise `auto` is accuracy or, if a class has less than a tenth of all rows (and, of more than five
    classes, less than half of an equal share), auc for two classes and balanced_accuracy for more.

    Raises :class:`SettingError` for a `gate.metric` that the problem or its classes do not have.
    """
    metrics = _METRICS.get(version.problem)
    if metrics is None:
        if settings.metric != "auto":
            raise SettingError(
                f"gate.metric: models of problem {version.problem} are compared by their own metric alone; remove "
                f"gate.metric={settings.metric}"
            )
        return None
    if settings.metric == "auto":
        if kept is not None and kept.name in metrics and _misfit(kept, version) is None:
            return kept.model_copy(update={"why": "it is that of the champion"})
        return _chosen(settings, version)
    if settings.metric not in metrics:
        raise SettingError(
            f"gate.metric: {settings.metric} is no metric of a {version.problem}; choose {', '.join(metrics)}"
        )
    metric = _described(settings, version, settings.metric, "gate.metric sets it")
    if (misfit := _misfit(metric, version)) is not None:
        raise SettingError(f"gate.metric={metric.name}: {misfit}")
    return metric


def row_numbers(
    metric: GateMetric,
    targets: Targets,
    predictions: Predictions,
    version: DatasetVersion,
    threshold: float | None = None,
) -> Numbers:
    """The number of each row by this metric, float64 (rows,), for the predictions of one model.

    `threshold` is that of the model, see :mod:`training.problems.thresholds`.
    """
    rows: Any = targets, predictions.astype(np.float64)
    if version.problem == "classification":
        rows = ClassRows(targets, predicted_classes(predictions, threshold), predictions, version.classes)
    return ROW_METRICS[metric.name].numbers(metric, rows)


def metric_numbers(
    metric: GateMetric | None,
    targets: Targets,
    models: Mapping[str, Predictions | None],
    version: DatasetVersion,
    confidence: float,
    thresholds: Mapping[str, float | None],
    weights: Weights | None,
) -> tuple[dict[str, Numbers], dict[str, MetricValue]]:
    """The numbers of the rows and the value of `metric` for each model of `models`, by its name.

    Numbers are multiplied by the rows' `weights`, whose mean is 1. Nothing if the metric is the problem's own.
    """
    if metric is None or is_own(metric, version.problem):
        return {}, {}
    each = 1.0 if weights is None else weights
    numbers = {
        name: each * row_numbers(metric, targets, predictions, version, thresholds.get(name))
        for name, predictions in models.items()
        if predictions is not None
    }
    of_metric = ROW_METRICS[metric.name]
    return numbers, {name: of_metric.value(rows, targets, confidence) for name, rows in numbers.items()}


def _chosen(settings: GateSettings, version: DatasetVersion) -> GateMetric:
    if version.problem != "classification":
        return _described(settings, version, _OWN[version.problem], "it is that of this problem")
    if _has_weights(version):
        return _described(settings, version, "accuracy", "rows have weights")
    rarest, share = _rarest(version)
    if share >= min(_RARE, 0.5 / len(version.classes)):
        return _described(settings, version, "accuracy", "no class is rare")
    name = "auc" if len(version.classes) == 2 else "balanced_accuracy"
    why = f"only {percent_text(share)} % of the rows are {version.classes[rarest]!r}"
    return _described(settings, version, name, why)


def _described(settings: GateSettings, version: DatasetVersion, name: str, why: str) -> GateMetric:
    positive = ""
    if name == "f1":
        positive = settings.positive or (
            version.classes[_rarest(version)[0]] if len(version.classes) == 2 else ""
        )
    costs = _matrix(settings.costs, version.classes) if name == "cost" else ()
    return GateMetric(name=name, why=why, positive=positive, quantile=settings.quantile, costs=costs)


def _has_weights(version: DatasetVersion) -> bool:
    return version.table is not None and version.table.weight is not None


def _rarest(version: DatasetVersion) -> tuple[int, float]:
    """Number and share of the class with the fewest rows, over both splits."""
    counts = np.array([version.label_counts["train"], version.label_counts["test"]]).sum(axis=0)
    return int(counts.argmin()), float(counts.min() / max(1, counts.sum()))


def _matrix(
    costs: Sequence[tuple[str, str, float]], classes: tuple[str, ...]
) -> tuple[tuple[float, ...], ...]:
    """The cost of each answer for each true class: as `costs` say, else 0 for the right class and 1 for another."""
    matrix = [[float(true != answer) for answer in classes] for true in classes]
    for true, answer, cost in costs:
        for name in (true, answer):
            if name not in classes:
                raise SettingError(
                    f"gate.costs: {name!r} is no class of the dataset; its classes are {', '.join(classes)}"
                )
        matrix[classes.index(true)][classes.index(answer)] = cost
    return tuple(map(tuple, matrix))


def _misfit(metric: GateMetric, version: DatasetVersion) -> str | None:
    """Why the metric can't be computed for these rows, with the remedy; None if it can."""
    classes = version.classes
    if _has_weights(version) and metric.name in _WITHOUT_WEIGHTS:
        return f"it does not take weights of rows, as of Table(weight=); choose {', '.join(_MEANS)}"
    if metric.name == "auc" and len(classes) != 2:
        return f"the dataset has {len(classes)} classes, and auc is of two; choose balanced_accuracy"
    if metric.name == "f1" and metric.positive not in classes:
        if not metric.positive:
            return f"name the class that it is about, with gate.positive: {', '.join(classes)}"
        return f"gate.positive: {metric.positive!r} is no class of the dataset; its classes are {', '.join(classes)}"
    if metric.name == "cost" and len(metric.costs) != len(classes):
        return "gate.costs is of other classes"
    return None
