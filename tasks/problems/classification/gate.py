"""How the gate compares two classifiers: row by row, and class by class."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.gate.outcomes import (
    Compared,
    Side,
    digest_of_rows,
    sign_flip_test,
    statistic_of,
    weights_of,
    with_p,
)
from tasks.gate.paired import margin_score, mcnemar
from tasks.gate.signs import Differences, Digests
from tasks.problems.classification.class_drop import class_drop_rule
from tasks.problems.classification.measures import Accuracy, LogLoss
from tasks.problems.classification.weighted_accuracy import WeightedAccuracy
from training.problems.probabilities import ClassificationScore
from training.records import Evaluation, Question, Rule
from training.settings.schema import GateSettings

MEASURES = {"accuracy": Accuracy(), "log_loss": LogLoss(), "weighted_accuracy": WeightedAccuracy()}

_SMALLEST = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class ClassOutcomes:
    """Rows of a classification: digest, label, and by model, whether the class is right and the log loss (nats).

    `weights` have the mean 1; None: all rows count the same. `log_loss_decides`: whether log losses are compared if
    neither model makes a mistake.
    """

    digests: Digests
    labels: npt.NDArray[np.int64]
    candidate: npt.NDArray[np.bool_]
    reference: npt.NDArray[np.bool_]
    candidate_loss: Differences
    reference_loss: Differences
    weights: Differences | None = None
    log_loss_decides: bool = True
    about: str = ""

    def __len__(self) -> int:
        return len(self.digests)

    @property
    def gained(self) -> int:
        """Rows that only the candidate got right."""
        return int((self.candidate & ~self.reference).sum())

    @property
    def lost(self) -> int:
        """Rows that only the reference got right."""
        return int((self.reference & ~self.candidate).sum())

    def rows_digest(self) -> str:
        """See :class:`tasks.gate.outcomes.Outcomes`."""
        return digest_of_rows(self.digests, self.labels, self.weights)

    def compared(self, question: Question, margin: float) -> Compared:
        """Compare accuracies; for question "better", log losses if neither model makes a mistake."""
        decides = self.log_loss_decides and question == "better"
        if decides and self.candidate.all() and self.reference.all():
            return self._by_log_loss()
        if self.weights is not None:
            return self._by_weighted_accuracy(question, margin, self.weights)
        return self._by_accuracy(question, margin)

    def _by_log_loss(self) -> Compared:
        differences = self.reference_loss - self.candidate_loss
        if self.weights is not None:
            differences = differences * self.weights
        gained, lost = int((differences > 0).sum()), int((differences < 0).sum())
        return Compared(
            measure="log_loss",
            digests=self.digests,
            differences=differences,
            test=lambda flips: sign_flip_test(flips, differences),
            uses_flips=True,
            gained=gained,
            lost=lost,
            difference=float(differences.mean()),
            # A few rows alone can lower the mean: so significantly more rows must gain than lose.
            second_p=mcnemar(gained, lost),
        )

    def _by_accuracy(self, question: Question, margin: float) -> Compared:
        """Compare discordant rows (right in one model alone); "not_worse" adds the margin to each difference."""
        differences = self.candidate.astype(np.float64) - self.reference
        if question == "not_worse":
            differences = np.where(differences, differences + margin, 0.0)
        elif question == "unless_worse":
            differences = -differences

        def test(_: Differences) -> tuple[float, float]:
            if question == "better":
                return mcnemar(self.gained, self.lost), statistic_of(differences)
            if question == "unless_worse":
                return mcnemar(self.lost, self.gained), statistic_of(differences)
            return with_p(margin_score(self.gained, self.lost, len(self), margin))

        return Compared(
            measure="accuracy",
            digests=self.digests,
            differences=differences,
            test=test,
            uses_flips=False,
            gained=self.gained,
            lost=self.lost,
            difference=(self.gained - self.lost) / len(self),
            reference_wrong=int((~self.reference).sum()),
        )

    def _by_weighted_accuracy(self, question: Question, margin: float, weights: Differences) -> Compared:
        """Compare the shares of the weight of rows that are right; see :class:`WeightedAccuracy`."""
        plain = weights * (self.candidate.astype(np.float64) - self.reference)
        differences = plain
        if question == "not_worse":
            differences = np.where(plain, plain + margin * weights, 0.0)
        elif question == "unless_worse":
            differences = -plain
        gained, lost = (float(part.sum()) / len(self) for part in (plain.clip(min=0), (-plain).clip(min=0)))
        rows = _rows_of_equal_weight(plain, weights)

        def test(flips: Differences) -> tuple[float, float]:
            if question != "not_worse":
                return sign_flip_test(flips, differences)
            return with_p(margin_score(gained * rows, lost * rows, rows, margin))

        return Compared(
            measure="weighted_accuracy",
            digests=self.digests,
            differences=differences,
            test=test,
            uses_flips=question != "not_worse",
            gained=int((plain > 0).sum()),
            lost=int((plain < 0).sum()),
            difference=gained - lost,
            reference_error=float((weights * ~self.reference).sum()) / len(self),
            standard_error=float(np.sqrt(np.square(plain).sum())) / len(self),
        )


def _rows_of_equal_weight(plain: Differences, weights: Differences) -> float:
    """Number of rows of equal weight on which the difference of two models would have the same variance.

    By the weights of all rows, sum(w)^2 / sum(w^2), or if that is less by those of the rows whose difference `plain`
    is not 0 (L. Kish, Survey Sampling, 1965, section 8.2). As :func:`margin_score` takes it, it is approximate.
    """
    total = float(weights.sum())
    rows = total**2 / float(np.square(weights).sum())
    discordant = float(np.abs(plain).sum())
    if discordant:
        rows = min(rows, discordant * total / float(np.square(plain).sum()))
    return rows


def outcomes(rows: pa.Table, reference: Side) -> ClassOutcomes:
    """See :class:`tasks.gate.outcomes.GateOfProblem`."""
    labels = rows["label"].to_numpy()
    return ClassOutcomes(
        digests=rows["digest"].to_numpy().astype(np.uint64),
        labels=labels,
        candidate=rows["candidate"].to_numpy() == labels,
        reference=rows[reference].to_numpy() == labels,
        candidate_loss=_log_loss(rows, "candidate"),
        reference_loss=_log_loss(rows, reference),
        weights=weights_of(rows),
        log_loss_decides=reference != "baseline",
    )


def further_rules(evaluation: Evaluation, settings: GateSettings) -> tuple[Rule, ...]:
    """The rule that no class may lose too much recall; none without changes by class."""
    assert isinstance(evaluation.candidate, ClassificationScore)
    if not evaluation.class_changes:
        return ()
    rows = [(class_score.name, class_score.rows) for class_score in evaluation.candidate.classes]
    return (class_drop_rule(rows, evaluation.class_changes, settings),)


def _log_loss(table: pa.Table, model: Side) -> Differences:
    """-ln(probability of the true class) in nats, clipped as in :mod:`training.problems.probabilities`."""
    truth = table[f"{model}_probability"].to_numpy().astype(np.float64)
    loss: Differences = -np.log(np.clip(truth, _SMALLEST, 1 - _SMALLEST))
    return loss
