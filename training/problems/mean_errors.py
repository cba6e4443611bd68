"""Problems that are scored by the mean of the rows' errors: numbers of at least 0, where 0 is a perfect prediction.

A problem of this kind can be a single file: :class:`MeanErrorMethods` and the modules of `tasks/problems/mean_errors/`
have what the problem does not define itself.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from training.problems.base import Baseline, Predictions, Targets, Weights
from training.problems.interval_texts import interval_in_log, interval_text
from training.problems.predicted_numbers import check_numbers, largest_of
from training.problems.shared import SharedMethods
from training.problems.skewed_means import Numbers, mean_interval
from training.records import DatasetVersion, EpochMetrics, Evaluation, GateMetric, Score


class MeanErrorScore(Score):
    """Scores of one model on the test rows. A problem's record adds the metric, as a field of the metric's name."""

    removed: float = Field(
        description="1 - metric / metric of predicting the median of the test rows' targets; at most 1"
    )
    rows_per_s: float


class MeanErrorMethods(SharedMethods):
    """The methods of a problem whose metric is the mean of the rows' errors, and whose prediction is one number a row.

    A problem inherits this class, after its objective if that is a class of another module. The problem gives `name`,
    `metric`, `metric_word` (the metric in a sentence), `score_record`, `finite` (the names of scores that must be
    finite) and :meth:`row_errors`, and overrides what differs. `metric_in_full` explains the metric in a model's
    description, and `row_word` is the noun for one row.
    """

    metric_word: str
    metric_in_full: ClassVar[str] = ""
    row_word: ClassVar[str] = "row"
    greater_is_better: bool = False
    predicts_text: bool = False
    model_type: ClassVar[str] = "regressor"

    def row_errors(self, targets: Targets, predictions: npt.NDArray[Any]) -> Numbers:
        """The error of each row, float64 (rows,), from the predicted numbers (rows,); each problem defines it."""
        raise NotImplementedError

    def compared_errors(self, targets: Targets, column: npt.NDArray[Any]) -> Numbers:
        """The error of each row, from the first of the columns that :meth:`row_columns` gives."""
        return self.row_errors(targets, column)

    def prediction_shape(self, version: DatasetVersion) -> tuple[int, ...]:
        """A number."""
        del version
        return ()

    def score(
        self,
        targets: Targets,
        predictions: Predictions,
        version: DatasetVersion,
        confidence: float,
        latency_ms: float,
        rows_per_s: float,
        weights: Weights | None = None,
    ) -> Score:
        """All scores of one model; `low` and `high` are :func:`mean_interval` of the rows' errors.

        The interval takes the rows as independent, and has no width if there is a single row.

        Raises the errors of :func:`check_numbers`.
        """
        del version, weights
        check_numbers(targets, predictions)
        low, mean, high = mean_error(self.row_errors(targets, predictions.astype(np.float64)), confidence)
        constant = float(self.row_errors(targets, np.full(len(targets), np.median(targets))).mean())
        values = {
            self.metric: mean,
            "low": low,
            "high": high,
            "confidence": confidence,
            # If all targets are equal: 1 or 0, as R² has it.
            "removed": 1 - mean / constant if constant else float(not mean),
            "latency_ms": latency_ms,
            "rows_per_s": rows_per_s,
        }
        return self.score_record.model_validate(values)

    def baseline(
        self,
        version: DatasetVersion,
        train_targets: Callable[[], Targets],
        rows: int,
        metric: GateMetric | None,
    ) -> Baseline | None:
        """The median of the targets of the training rows, for every row."""
        del version, metric
        median = float(np.median(train_targets()))
        return Baseline(np.full(rows, median, np.float32), f"always answering the median {median:.4g}")

    def row_columns(self, targets: Targets, predictions: Predictions) -> dict[str, npt.NDArray[Any]]:
        """The predicted number of each row, float64, so that errors are computed again with the same bits."""
        del targets
        return {"": predictions.astype(np.float64)}

    def findings(
        self, targets: Targets, candidate: Predictions, champion: Predictions | None, version: DatasetVersion
    ) -> dict[str, Any]:
        """The rows with the candidate's largest errors, without rows that are predicted exactly."""
        del champion, version
        errors = self.row_errors(targets, candidate.astype(np.float64))
        return {"largest_errors": largest_of(errors, targets, candidate)}

    def floor_value(self, score: Score) -> float:
        """0 for a model that predicts the median of the targets for each row, 1 for a perfect model."""
        assert isinstance(score, MeanErrorScore)
        return score.removed

    def floor_text(self, value: float) -> tuple[str, str]:
        """The share with four decimals."""
        return "share removed of the error of a constant prediction", f"{value:.4f}"

    def spell(self, value: float) -> str:
        """A value of the metric with four significant digits."""
        return f"{value:.4g}"

    def headline(self, score: Score) -> str:
        """The metric with its interval."""
        interval = interval_in_log(score, self.spell, self._errors())
        return f"test {self.metric_word} {self.figure(score)} ({interval})"

    def purpose(self, rows: str, version: DatasetVersion) -> str:
        """The name of the target."""
        name = version.table.target if version.table is not None else "a number"
        return f"Predicts {name}, from {rows}"

    def in_words(self, score: Score, rows: str) -> str:
        """The metric with its interval, which takes the rows as independent, also those of one group."""
        interval = interval_text(score, self.spell, self._errors(), f"{self.row_word}s taken as independent")
        return f"{self.metric_in_full or self.metric_word} {self.figure(score)} ({interval}) on {rows}"

    def _errors(self) -> str:
        """Name of what must vary for an interval."""
        return f"the errors of the test {self.row_word}s"

    def against(self, candidate: Score, champion: Score) -> str:
        """The metric of both models."""
        return f"{self.metric_word} {self.figure(candidate)} against {self.figure(champion)}"

    def release_metrics(
        self, candidate: Score, champion: Score | None, selected: EpochMetrics
    ) -> dict[str, float]:
        """Test scores, those on the validation rows, and the champion's metric if there is a champion."""
        numbers = {
            self.metric: self._metric_of(candidate),
            f"{self.metric}_low": candidate.low,
            f"{self.metric}_high": candidate.high,
            "validation_loss": selected.validation_loss,
            f"validation_{self.metric}": selected.validation_score,
            "latency_ms": candidate.latency_ms,
        }
        return numbers | ({} if champion is None else {f"champion_{self.metric}": self._metric_of(champion)})

    def recounted(
        self, targets: Targets, columns: Mapping[str, npt.NDArray[Any]], evaluation: Evaluation
    ) -> dict[str, tuple[float, float]]:
        """The metric of candidate and champion."""
        pairs = {self.metric: (evaluation.candidate, "candidate")}
        if "champion" in columns and evaluation.champion is not None:
            pairs[f"champion_{self.metric}"] = (evaluation.champion, "champion")
        return {
            name: (self._metric_of(score), float(self.compared_errors(targets, columns[column]).mean()))
            for name, (score, column) in pairs.items()
        }

    def _metric_of(self, score: Score) -> float:
        return float(getattr(self.own(score), self.metric))


def mean_error(errors: Numbers, confidence: float) -> tuple[float, float, float]:
    """Lower end of the interval, mean, and upper end; :func:`mean_interval` explains the interval."""
    low, high = mean_interval(errors, confidence)
    mean = float(errors.mean())
    return min(max(0.0, low), mean), mean, max(high, mean)
