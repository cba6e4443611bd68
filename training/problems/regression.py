"""Regression: predict a number, and score predicted numbers on test rows, as pure functions of NumPy arrays.

Throughout, `targets` is float64 of shape (rows,), and `predictions` is float32 of shape (rows,), both in the unit of
the target. An error is a prediction minus its target.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
from pydantic import Field

from training.problems.base import Baseline, Predictions, Weights
from training.problems.interval_texts import interval_in_log, interval_text
from training.problems.objectives.regression import RegressionObjective
from training.problems.predicted_numbers import WORST, check_numbers, largest_of
from training.problems.shared import SharedMethods
from training.problems.skewed_means import Numbers, mean_interval
from training.records import (
    DatasetVersion,
    EpochMetrics,
    Evaluation,
    GateMetric,
    LargestError,
    ProblemName,
    Score,
)

_ERRORS = "the errors of the test rows"


class RegressionScore(Score):
    """Scores of one regression model on the test rows, in the unit of the target.

    `low` to `high` is the interval of `rmse` (root of the mean squared error).
    """

    problem: ProblemName = "regression"
    rmse: float
    mae: float = Field(description="mean absolute error")
    r2: float = Field(
        description="1 - sum of squared errors / sum of squared differences from the mean; at most 1"
    )
    median_error: float = Field(description="median absolute error")
    bias: float = Field(description="mean of predicted minus true")
    rows_per_s: float


@dataclass(frozen=True)
class Regression(RegressionObjective, SharedMethods):
    """Predict a number from an image or a row of a table; see :class:`training.problems.base.Problem`."""

    name: ProblemName = "regression"
    greater_is_better: bool = False
    metric_word: str = "RMSE"
    predicts_text: bool = False
    model_type: ClassVar[str] = "regressor"
    score_record: ClassVar[type[Score]] = RegressionScore
    finite: ClassVar[tuple[str, ...]] = ("rmse", "low", "high", "mae", "r2", "median_error", "bias")

    def prediction_shape(self, version: DatasetVersion) -> tuple[int, ...]:
        """A number."""
        del version
        return ()

    def score(
        self,
        targets: Numbers,
        predictions: Predictions,
        version: DatasetVersion,
        confidence: float,
        latency_ms: float,
        rows_per_s: float,
        weights: Weights | None = None,
    ) -> RegressionScore:
        """See :func:`score`."""
        del version
        return score(targets, predictions, confidence, latency_ms, rows_per_s, weights)

    def baseline(
        self,
        version: DatasetVersion,
        train_targets: Callable[[], Numbers],
        rows: int,
        metric: GateMetric | None,
    ) -> Baseline:
        """The mean of the targets of the training rows; by absolute errors their median, by pinball their quantile."""
        assert version.table is not None  # it has the target
        word, number = "mean", version.table.target_mean
        if metric is not None and metric.name == "absolute":
            word, number = "median", float(np.median(train_targets()))
        if metric is not None and metric.name == "pinball":
            word = f"{metric.quantile:g} quantile"
            number = float(np.quantile(train_targets(), metric.quantile))
        return Baseline(np.full(rows, number, np.float32), f"always answering the {word} {shown(number)}")

    def row_columns(self, targets: Numbers, predictions: Predictions) -> dict[str, npt.NDArray[Any]]:
        """The predicted number of each row, float64, so that errors are computed again with the same bits."""
        del targets
        return {"": predictions.astype(np.float64)}

    def findings(
        self,
        targets: Numbers,
        candidate: Predictions,
        champion: Predictions | None,
        version: DatasetVersion,
    ) -> dict[str, Any]:
        """The rows with the candidate's largest errors."""
        del champion, version
        return {"largest_errors": largest_errors(targets, candidate)}

    def own(self, score: Score) -> RegressionScore:
        """See :class:`SharedMethods`."""
        return cast(RegressionScore, super().own(score))

    def floor_value(self, score: Score) -> float:
        """R²: 0 for predicting the mean of the test rows' targets, 1 for predicting each target."""
        return self.own(score).r2

    def floor_text(self, value: float) -> tuple[str, str]:
        """R² with four decimals."""
        return "R²", f"{value:.4f}"

    def spell(self, value: float) -> str:
        """An RMSE with four significant digits."""
        return shown(value)

    def further_scores(self, metrics: Mapping[str, float]) -> list[tuple[str, str]]:
        """R² and the mean absolute error."""
        return [("R²", f"{metrics['r2']:.4f}, mean absolute error {shown(metrics['mae'])}")]

    def headline(self, score: Score) -> str:
        """The RMSE with its interval, and R²."""
        own_score = self.own(score)
        return (
            f"test RMSE {shown(own_score.rmse)} ({interval_in_log(own_score, shown, _ERRORS)}), "
            f"R² {own_score.r2:.4f}"
        )

    def purpose(self, rows: str, version: DatasetVersion) -> str:
        """The name of the target."""
        assert version.table is not None  # it has the target
        return f"Predicts {version.table.target} as a number, from {rows}"

    def in_words(self, score: Score, rows: str) -> str:
        """The RMSE with its interval, which takes the rows as independent, also those of one group; and R²."""
        own_score = self.own(score)
        interval = interval_text(own_score, shown, _ERRORS, "rows taken as independent")
        return f"RMSE {shown(own_score.rmse)} ({interval}), R² {own_score.r2:.4f}, on {rows}"

    def against(self, candidate: Score, champion: Score) -> str:
        """Both RMSEs."""
        return f"RMSE {shown(self.own(candidate).rmse)} against {shown(self.own(champion).rmse)}"

    def release_metrics(
        self,
        candidate: Score,
        champion: Score | None,
        selected: EpochMetrics,
    ) -> dict[str, float]:
        """Test scores, `validation_loss` and `validation_rmse`, and `champion_rmse` if there is a champion."""
        ours = self.own(candidate)
        numbers = {
            "rmse": ours.rmse,
            "rmse_low": ours.low,
            "rmse_high": ours.high,
            "mae": ours.mae,
            "r2": ours.r2,
            "validation_loss": selected.validation_loss,
            "validation_rmse": selected.validation_score,
            "latency_ms": ours.latency_ms,
        }
        return numbers | ({} if champion is None else {"champion_rmse": self.own(champion).rmse})

    def recounted(
        self, targets: Numbers, columns: Mapping[str, npt.NDArray[Any]], evaluation: Evaluation
    ) -> dict[str, tuple[float, float]]:
        """RMSE, mean absolute error and R² of the candidate, and the champion's RMSE."""
        weights = columns.get("weight")
        ours, again = self.own(evaluation.candidate), _scores(targets, columns["candidate"], weights)
        pairs = {name: (getattr(ours, name), again[name]) for name in ("rmse", "mae", "r2")}
        if "champion" in columns and evaluation.champion is not None:
            theirs = _scores(targets, columns["champion"], weights)
            pairs["champion_rmse"] = (self.own(evaluation.champion).rmse, theirs["rmse"])
        return pairs


def score(
    targets: Numbers,
    predictions: Predictions,
    confidence: float,
    latency_ms: float,
    rows_per_s: float,
    weights: Weights | None = None,
) -> RegressionScore:
    """All scores of one model; `low` and `high` are :func:`mean_interval` of the squared errors, as RMSE.

    The interval takes the rows as independent: for rows that depend on each other, such as those of one group of
    `Table(group=...)`, it is too narrow. It has no width if there is a single row.

    With `weights` (rows,) of mean 1, means and the median are weighted ones.

    R² of targets that are all equal is 1 if each is predicted exactly, and 0 otherwise, as in scikit-learn's
    `r2_score`: the quotient is undefined then.

    Raises :class:`TrainingError` when a prediction is NaN or infinite, and ValueError when shapes or targets are
    impossible.
    """
    check_numbers(targets, predictions)
    squared = np.square(_errors(targets, predictions)) * (1.0 if weights is None else weights)
    low, high = mean_interval(squared, confidence)
    return RegressionScore(
        **_scores(targets, predictions, weights),
        low=math.sqrt(max(0.0, low)),
        high=math.sqrt(high),
        confidence=confidence,
        latency_ms=latency_ms,
        rows_per_s=rows_per_s,
    )


def largest_errors(
    targets: Numbers, predictions: Predictions, limit: int = WORST
) -> tuple[LargestError, ...]:
    """At most `limit` rows by descending absolute error, then by row number; without rows that are predicted exactly.

    Raises :class:`TrainingError` and ValueError as :func:`score` does.
    """
    check_numbers(targets, predictions)
    return largest_of(np.abs(_errors(targets, predictions)), targets, predictions, limit)


def shown(value: float) -> str:
    """`value` with four significant digits; from 1,000 on as a whole number, from 1e15 on with an exponent."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def _scores(targets: Numbers, predictions: npt.NDArray[Any], weights: Weights | None) -> dict[str, float]:
    """The scores without their interval, by field of :class:`RegressionScore`."""
    errors, each = _errors(targets, predictions), np.ones(len(targets)) if weights is None else weights
    squared = float((each * np.square(errors)).sum())
    spread = float((each * np.square(targets - (each * targets).mean())).sum())
    constant = bool((targets == targets[0]).all())  # `spread` may differ from 0 by rounding then
    return {
        "rmse": math.sqrt(squared / len(targets)),
        "mae": float((each * np.abs(errors)).mean()),
        "r2": float(not squared) if constant else 1 - squared / spread,
        "median_error": _median(np.abs(errors), weights),
        "bias": float((each * errors).mean()),
    }


def _median(values: Numbers, weights: Weights | None) -> float:
    """The median; with weights the least value up to which the values have half of all weight."""
    if weights is None:
        return float(np.median(values))
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])


def _errors(targets: Numbers, predictions: npt.NDArray[Any]) -> Numbers:
    errors: Numbers = predictions.astype(np.float64) - targets
    return errors
