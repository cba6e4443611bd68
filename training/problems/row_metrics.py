"""Metrics as one number a row, whose mean over the rows is the metric: what the gate compares and reports.

The number of a row depends on one model alone, so the difference of two models is the difference of their numbers. The
mean of the numbers is the metric exactly; that it moves with a row's own outcome as the number says holds exactly for
means of losses, and to first order for auc and f1:

accuracy            whether the class is right
balanced_accuracy   right / (classes * share of the row's class): the mean of the recalls
log_loss, brier     -ln(probability of the true class); squared distance of the probabilities from 0 and 1
cost                the cost of answering this class, `gate.costs`
auc                 area under the ROC curve: auc + (placement - auc) / share of the row's class. The placement of a
                    row is the share of the rows of the other class that it is ranked rightly to: the structural
                    components of E. DeLong, D. DeLong and D. Clarke-Pearson, Biometrics 44 (1988) 837-845
f1                  f1 + 2 (both - f1 (predicted + true) / 2) / (share predicted + share true): the influence function
                    of the quotient 2 TP / (2 TP + FP + FN)
squared, absolute   of the error of a number
pinball             quantile loss of R. Koenker and G. Bassett, Econometrica 46 (1978) 33-50, at `gate.quantile`
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from training.percentages import share_text
from training.problems.probabilities import wilson
from training.problems.skewed_means import Numbers, mean_interval
from training.records import GateMetric, MetricValue

Labels = npt.NDArray[np.int64]

ENDING = "_number"  # of the columns of `predictions.parquet` with the numbers of each model
_ROUNDING = 1e-18  # a smaller variance is what rounding leaves of 0
_SMALLEST = float(np.finfo(np.float32).eps)  # as in training.problems.probabilities


@dataclass(frozen=True)
class ClassRows:
    """Rows of a classification: true classes, predicted classes (rows,), and probabilities (rows, classes)."""

    labels: Labels
    predicted: Labels
    probabilities: npt.NDArray[Any]
    classes: tuple[str, ...]

    @property
    def shares(self) -> Numbers:
        """The share of the rows that have the row's class, for each row."""
        shares: Numbers = np.bincount(self.labels, minlength=len(self.classes))[self.labels] / len(
            self.labels
        )
        return shares


@dataclass(frozen=True)
class RowMetric:
    """A metric; `numbers` gives one number a row from :class:`ClassRows`, or from (targets, predictions).

    `word` names the metric in a sentence. `is_share`: it lies between 0 and 1, and a change of it is written in points.
    `by_class`: the rows of a rare class count more than others. How it varies is then computed within each class, as
    the numbers of rows of the classes are fixed.
    """

    word: str
    numbers: Callable[[GateMetric, Any], Numbers]
    greater_is_better: bool = False
    by_class: bool = False

    @property
    def is_share(self) -> bool:
        """Whether the metric lies between 0 and 1, where 1 is best."""
        return self.greater_is_better

    def spell(self, value: float) -> str:
        """A value of the metric, for a sentence or a table."""
        return share_text(value) if self.is_share else f"{value:.4g}"

    def value(self, numbers: Numbers, targets: npt.NDArray[Any], confidence: float) -> MetricValue:
        """The mean of the rows' numbers, with its interval.

        The interval of a metric up to 1 is Wilson's for as many independent rows as give the variance of the mean of
        the numbers (the effective sample size of E. Korn and B. Graubard, Survey Methodology 24 (1998) 193-201), which
        stays within 0 and 1. If the numbers of a class do not vary, as of a model without a mistake, it is that of the
        rarest class's rows. The interval of a mean loss is :func:`training.problems.skewed_means.mean_interval`.
        """
        mean = float(numbers.mean())
        if not self.is_share:
            low, high = mean_interval(numbers, confidence)
            return MetricValue(value=mean, low=max(0.0, low), high=high)
        mean = min(1.0, max(0.0, mean))
        variance = self._variance(numbers, targets)
        rows = mean * (1 - mean) / variance if variance > _ROUNDING else float(rarest(targets))
        low, high = wilson(mean, max(1.0, rows), confidence)
        return MetricValue(value=mean, low=low, high=high)

    def _variance(self, numbers: Numbers, targets: npt.NDArray[Any]) -> float:
        """Variance of the mean of the numbers."""
        if not self.by_class:
            return float(numbers.var()) / len(numbers)
        parts = [numbers[targets == label] for label in np.unique(targets)]
        return sum(len(part) * float(part.var()) for part in parts) / len(numbers) ** 2


def rarest(targets: npt.NDArray[Any]) -> int:
    """Number of rows of the class with the fewest rows."""
    return int(np.unique(targets, return_counts=True)[1].min())


def _hits(_: GateMetric, rows: ClassRows) -> Numbers:
    hits: Numbers = (rows.predicted == rows.labels).astype(np.float64)
    return hits


def _balanced(metric: GateMetric, rows: ClassRows) -> Numbers:
    """Classes without rows do not count, as in scikit-learn's `balanced_accuracy_score`."""
    weighed: Numbers = _hits(metric, rows) / (len(np.unique(rows.labels)) * rows.shares)
    return weighed


def _log_loss(_: GateMetric, rows: ClassRows) -> Numbers:
    truth = rows.probabilities[np.arange(len(rows.labels)), rows.labels].astype(np.float64)
    loss: Numbers = -np.log(np.clip(truth, _SMALLEST, 1 - _SMALLEST))
    return loss


def _brier(_: GateMetric, rows: ClassRows) -> Numbers:
    """Halved for two classes, where both probabilities are equally far off, as in scikit-learn's `brier_score_loss`."""
    off = rows.probabilities.astype(np.float64) - np.eye(len(rows.classes))[rows.labels]
    squares: Numbers = np.square(off).sum(axis=1)
    return squares / 2 if len(rows.classes) == 2 else squares


def _cost(metric: GateMetric, rows: ClassRows) -> Numbers:
    costs: Numbers = np.array(metric.costs, np.float64)[rows.labels, rows.predicted]
    return costs


def _auc(_: GateMetric, rows: ClassRows) -> Numbers:
    """0.5 for every row if the rows have only one of the two classes: then nothing is ranked."""
    scores = rows.probabilities[:, 1].astype(np.float64)
    positive = rows.labels == 1
    if positive.all() or not positive.any():
        return np.full(len(scores), 0.5)
    placements = np.empty(len(scores))
    placements[positive] = _share_below(scores[positive], scores[~positive])
    placements[~positive] = 1 - _share_below(scores[~positive], scores[positive])
    area = float(placements[positive].mean())
    numbers: Numbers = area + (placements - area) / rows.shares
    return numbers


def _share_below(scores: Numbers, others: Numbers) -> Numbers:
    """For each score, the share of `others` that are smaller; equal ones count half."""
    ordered = np.sort(others)
    below, up_to = (np.searchsorted(ordered, scores, side) for side in ("left", "right"))
    shares: Numbers = (below + up_to) / (2 * len(others))
    return shares


def _f1(metric: GateMetric, rows: ClassRows) -> Numbers:
    """0 if no row has or gets the positive class."""
    number = rows.classes.index(metric.positive)
    true, predicted = rows.labels == number, rows.predicted == number
    whole = float(true.mean() + predicted.mean())
    if not whole:
        return np.zeros(len(true))
    both = true & predicted
    f1 = 2 * float(both.mean()) / whole
    numbers: Numbers = f1 + 2 * (both - f1 * (true.astype(np.float64) + predicted) / 2) / whole
    return numbers


def _squared(_: GateMetric, rows: tuple[Numbers, Numbers]) -> Numbers:
    squares: Numbers = np.square(rows[1] - rows[0])
    return squares


def _absolute(_: GateMetric, rows: tuple[Numbers, Numbers]) -> Numbers:
    errors: Numbers = np.abs(rows[1] - rows[0])
    return errors


def _pinball(metric: GateMetric, rows: tuple[Numbers, Numbers]) -> Numbers:
    missing = rows[0] - rows[1]
    losses: Numbers = np.maximum(metric.quantile * missing, (metric.quantile - 1) * missing)
    return losses


CLASS_METRICS = {
    "accuracy": RowMetric("accuracy", _hits, greater_is_better=True),
    "balanced_accuracy": RowMetric("balanced accuracy", _balanced, greater_is_better=True, by_class=True),
    "log_loss": RowMetric("log loss", _log_loss),
    "brier": RowMetric("Brier score", _brier),
    "cost": RowMetric("mean cost", _cost),
    "auc": RowMetric("AUC", _auc, greater_is_better=True, by_class=True),
    "f1": RowMetric("F1", _f1, greater_is_better=True),
}
NUMBER_METRICS = {
    "squared": RowMetric("mean squared error", _squared),
    "absolute": RowMetric("mean absolute error", _absolute),
    "pinball": RowMetric("pinball loss", _pinball),
}
ROW_METRICS = CLASS_METRICS | NUMBER_METRICS
