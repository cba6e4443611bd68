"""Classification: predict a class. The scores are computed in :mod:`training.problems.probabilities`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from training.percentages import percent_text, share_text
from training.problems.base import Baseline
from training.problems.objectives.classification import ClassificationObjective
from training.problems.probabilities import (
    ClassificationScore,
    Labels,
    Probabilities,
    Weights,
    aligned,
    paired,
    score,
    worst_mistakes,
)
from training.problems.shared import SharedMethods
from training.problems.thresholds import predicted_classes
from training.records import DatasetVersion, EpochMetrics, Evaluation, GateMetric, ProblemName, Score


@dataclass(frozen=True)
class Classification(ClassificationObjective, SharedMethods):
    """Predict the class of an image or of a row of a table; see :class:`training.problems.base.Problem`."""

    name: ProblemName = "classification"
    greater_is_better: bool = True
    metric_word: str = "accuracy"
    predicts_text: bool = False
    model_type: ClassVar[str] = "classifier"
    score_record: ClassVar[type[Score]] = ClassificationScore
    finite: ClassVar[tuple[str, ...]] = (
        "accuracy",
        "low",
        "high",
        "log_loss",
        "macro_f1",
        "calibration_error",
    )

    @property
    def thresholds(self) -> tuple[float | None, float | None]:
        """Thresholds of the scored model and of the champion it is compared with; see :class:`WithThresholds`."""
        return None, None

    def prediction_shape(self, version: DatasetVersion) -> tuple[int, ...]:
        """One probability for each class."""
        return (len(version.classes),)

    def score(
        self,
        targets: Labels,
        predictions: Probabilities,
        version: DatasetVersion,
        confidence: float,
        latency_ms: float,
        rows_per_s: float,
        weights: Weights | None = None,
    ) -> ClassificationScore:
        """See :func:`score`."""
        return score(
            targets,
            predictions,
            version.classes,
            confidence,
            latency_ms,
            rows_per_s,
            weights,
            self.thresholds[0],
        )

    def baseline(
        self,
        version: DatasetVersion,
        train_targets: Callable[[], Labels],
        rows: int,
        metric: GateMetric | None,
    ) -> Baseline:
        """The commonest class of the training rows, with the shares of all classes as probabilities.

        By cost it is the cheapest class, and by f1 the positive class, with probability 1.
        """
        del train_targets
        counts = np.array(version.label_counts["train"], np.float64)
        shares = counts / counts.sum()
        answer = int(shares.argmax())
        if metric is not None and metric.name == "cost":
            answer = int((shares @ np.array(metric.costs)).argmin())
        if metric is not None and metric.name == "f1":
            answer = version.classes.index(metric.positive)
        if answer != shares.argmax():
            shares = np.eye(len(shares))[answer]
        words = f"always answering {version.classes[answer]!r}"
        return Baseline(np.tile(shares.astype(np.float32), (rows, 1)), words)

    def aligned(
        self, predictions: Probabilities, classes: tuple[str, ...], version: DatasetVersion
    ) -> Probabilities:
        """See :func:`aligned`."""
        return aligned(predictions, classes, version.classes)

    def row_columns(self, targets: Labels, predictions: Probabilities) -> dict[str, npt.NDArray[Any]]:
        """The predicted class of each row, and the probability of its true class."""
        truth = predictions[np.arange(len(targets)), targets]
        return {"": predicted_classes(predictions, self.thresholds[0]), "_probability": truth}

    def findings(
        self,
        targets: Labels,
        candidate: Probabilities,
        champion: Probabilities | None,
        version: DatasetVersion,
    ) -> dict[str, Any]:
        """Rows by which model predicted the right class, and the candidate's worst mistakes."""
        counts = dict(paired(targets, candidate, champion, self.thresholds))
        threshold = self.thresholds[0]
        return counts | {"mistakes": worst_mistakes(targets, candidate, version.classes, threshold=threshold)}

    def contradiction(self, evaluation: Evaluation) -> str | None:
        """The counts of rows and of classes have to add up."""
        gained, lost = evaluation.only_candidate_right, evaluation.only_champion_right
        if evaluation.both_right + gained + lost + evaluation.both_wrong != evaluation.rows:
            return f"the paired counts do not add up to {evaluation.rows} rows"
        by_class, classes = evaluation.class_changes, len(self.own(evaluation.candidate).classes)
        if len(by_class) != classes:
            return f"class_changes has {len(by_class)} of {classes} classes"
        if (sum(gain for gain, _ in by_class), sum(drop for _, drop in by_class)) != (gained, lost):
            return "class_changes do not add up to the paired counts"
        return None

    def own(self, score: Score) -> ClassificationScore:
        """See :class:`SharedMethods`."""
        return cast(ClassificationScore, super().own(score))

    def floor_value(self, score: Score) -> float:
        """The accuracy."""
        return self.own(score).accuracy

    def floor_text(self, value: float) -> tuple[str, str]:
        """The accuracy in percent."""
        return "accuracy", f"{percent_text(value)} %"

    def spell(self, value: float) -> str:
        """An accuracy with four decimals, or more that tell it from 0 and 1."""
        return share_text(value)

    def headline(self, score: Score) -> str:
        """The accuracy with its interval."""
        own_score = self.own(score)
        return (
            f"test accuracy {share_text(own_score.accuracy)} ({share_text(own_score.low)} to "
            f"{share_text(own_score.high)} at "
            f"{100 * own_score.confidence:g}% confidence)"
        )

    def purpose(self, rows: str, version: DatasetVersion) -> str:
        """The classes, and the name of their column in a table."""
        if version.table is None:
            return f"Classifies {rows} into {self._of_classes(version)}"
        return f"Predicts {version.table.target} of {self._of_classes(version)}, from {rows}"

    def in_words(self, score: Score, rows: str) -> str:
        """The accuracy in percent with its interval; without a line break before a percent sign."""
        own_score = self.own(score)
        shares = (
            f"{percent_text(share)}\N{NO-BREAK SPACE}%"
            for share in (own_score.accuracy, own_score.low, own_score.high)
        )
        accuracy, low, high = shares
        confidence = f"{100 * own_score.confidence:.6g}\N{NO-BREAK SPACE}%"
        return f"{accuracy} accurate on {rows} ({confidence} confidence: {low} to {high})"

    def against(self, candidate: Score, champion: Score) -> str:
        """Both accuracies in percent."""
        ours, theirs = (
            self.floor_text(self.own(model_score).accuracy)[1] for model_score in (candidate, champion)
        )
        return f"accuracy {ours} against {theirs}"

    def release_metrics(
        self,
        candidate: Score,
        champion: Score | None,
        selected: EpochMetrics,
    ) -> dict[str, float]:
        """Test scores, `validation_loss` and `validation_accuracy`, and `champion_accuracy` if there is a champion."""
        ours = self.own(candidate)
        numbers = {
            "accuracy": ours.accuracy,
            "accuracy_low": ours.low,
            "accuracy_high": ours.high,
            "log_loss": ours.log_loss,
            "macro_f1": ours.macro_f1,
            "calibration_error": ours.calibration_error,
            "validation_loss": selected.validation_loss,
            "validation_accuracy": selected.validation_score,
            "latency_ms": ours.latency_ms,
        }
        return numbers | ({} if champion is None else {"champion_accuracy": self.own(champion).accuracy})

    def recounted(
        self, targets: Labels, columns: Mapping[str, npt.NDArray[Any]], evaluation: Evaluation
    ) -> dict[str, tuple[float, float]]:
        """The accuracy, and the rows that only one of the models got right."""
        right = columns["candidate"] == targets
        accuracy = float(np.average(right, weights=columns.get("weight")))
        pairs = {"accuracy": (self.own(evaluation.candidate).accuracy, accuracy)}
        if "champion" in columns:
            theirs = columns["champion"] == targets
            pairs["only candidate right"] = (evaluation.only_candidate_right, int((right & ~theirs).sum()))
            pairs["only champion right"] = (evaluation.only_champion_right, int((theirs & ~right).sum()))
        return pairs


@dataclass(frozen=True)
class WithThresholds(Classification):
    """The classification of models with thresholds (:mod:`training.problems.thresholds`).

    `own_threshold` is that of the scored model or candidate, `champion_threshold` that of its champion.
    """

    own_threshold: float | None = None
    champion_threshold: float | None = None

    @property
    def thresholds(self) -> tuple[float | None, float | None]:
        """See :class:`Classification`."""
        return self.own_threshold, self.champion_threshold
