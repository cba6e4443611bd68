"""Outcomes of two models on the same rows, row by row: the input of a look."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.gate.paired import margin_score, mcnemar
from tasks.gate.signs import FLIPS, Differences, Digests
from training.problems.regression import skewness_corrected
from training.records import Measure, Question

Side = Literal["candidate", "champion", "anchor"]

_SMALLEST = float(np.finfo(np.float32).eps)
_LEAST_P, _MOST_P = 1e-300, 1 - 1e-15  # their z is finite, as every number of a look has to be


@dataclass(frozen=True)
class Compared:
    """What a question compares: the difference of each row, positive in favour of the candidate, and its test.

    `test` gives (p, statistic) from the flipped sums of `differences` (:mod:`tasks.gate.signs`); the p-value is that of
    this comparison alone, the statistic is in standard deviations. `uses_flips`: whether it needs these sums. `also` is
    a further p-value, which alpha must reach. `gained` and `lost` count rows that speak for candidate and reference,
    `difference` is the mean difference of the models, without the margin. Of a regression, `reference_error` is the
    reference's mean squared error, and `standard_error` that of the mean of `differences`.
    """

    measure: Measure
    digests: Digests
    differences: Differences
    test: Callable[[Differences], tuple[float, float]]
    uses_flips: bool
    gained: int
    lost: int
    difference: float
    also: float = 0.0
    reference_wrong: int = 0
    reference_error: float = 0.0
    standard_error: float = 0.0


class Outcomes(Protocol):
    """The compared rows, with what two models predicted for each."""

    def __len__(self) -> int: ...

    def rows_digest(self) -> str:
        """Digest of the labelled rows; does not depend on their order."""

    def compared(self, question: Question, margin: float) -> Compared:
        """The comparison that answers `question`; `margin` is that of question "not_worse"."""


@dataclass(frozen=True)
class ClassOutcomes:
    """Rows of a classification: digest, label, and for each model whether it was right and its log loss (nats)."""

    digests: Digests
    labels: npt.NDArray[np.int64]
    candidate: npt.NDArray[np.bool_]
    reference: npt.NDArray[np.bool_]
    candidate_loss: Differences
    reference_loss: Differences

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
        """See :class:`Outcomes`."""
        return _rows_digest(self.digests, self.labels)

    def compared(self, question: Question, margin: float) -> Compared:
        """Accuracy; log loss for "better" when neither model makes a mistake."""
        if question == "better" and self.candidate.all() and self.reference.all():
            return self._by_log_loss()
        return self._by_accuracy(question, margin)

    def _by_log_loss(self) -> Compared:
        differences = self.reference_loss - self.candidate_loss
        gained, lost = int((differences > 0).sum()), int((differences < 0).sum())
        return Compared(
            measure="log_loss",
            digests=self.digests,
            differences=differences,
            test=lambda flips: _sign_flip_test(flips, differences),
            uses_flips=True,
            gained=gained,
            lost=lost,
            difference=float(differences.mean()),
            also=mcnemar(
                gained, lost
            ),  # a few rows can lower the mean: significantly more must gain than lose
        )

    def _by_accuracy(self, question: Question, margin: float) -> Compared:
        """By the discordant rows; "not_worse" adds the margin to each of them."""
        differences = self.candidate.astype(np.float64) - self.reference
        if question == "not_worse":
            differences = np.where(differences, differences + margin, 0.0)

        def test(_: Differences) -> tuple[float, float]:
            if question == "better":
                return mcnemar(self.gained, self.lost), _statistic(differences)
            return _with_p(margin_score(self.gained, self.lost, len(self), margin))

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


@dataclass(frozen=True)
class NumberOutcomes:
    """Rows of a regression: digest, target, and the squared error of each model, in the target's unit squared.

    Rows with the same digest are compared as one, by the sum of their differences: they may depend on each other, such
    as the rows of one group of `Table(group=...)`.
    """

    digests: Digests
    labels: Differences
    candidate_error: Differences
    reference_error: Differences

    def __len__(self) -> int:
        return len(self.digests)

    def rows_digest(self) -> str:
        """See :class:`Outcomes`."""
        return _rows_digest(self.digests, self.labels)

    def compared(self, question: Question, margin: float) -> Compared:
        """Squared errors. "not_worse" lets the mean squared error grow by the share `margin` of the reference's.

        "better" is tested by sign flips: exact if both models are equally likely to have each of a row's two errors.
        "not_worse" has no such symmetry, see :func:`_studentised`.
        """
        plain = self.reference_error - self.candidate_error
        wide = plain + (margin * self.reference_error if question == "not_worse" else 0.0)
        digests, differences = _summed(self.digests, wide)

        def test(flips: Differences) -> tuple[float, float]:
            if question == "better":
                return _sign_flip_test(flips, differences)
            return _studentised(differences)

        return Compared(
            measure="squared_error",
            digests=digests,
            differences=differences,
            test=test,
            uses_flips=question == "better",
            gained=int((plain > 0).sum()),
            lost=int((plain < 0).sum()),
            difference=float(plain.mean()),
            reference_error=float(self.reference_error.mean()),
            standard_error=float(np.sqrt(np.square(differences).sum())) / len(self),
        )


def read_outcomes(predictions: Path, reference: Side) -> Outcomes:
    """Read the compared rows from the file `predictions.parquet` of a comparison.

    Only a classification's file has the probabilities of the true classes.
    """
    table = pq.read_table(predictions)
    table = table.filter(table["compared"])
    digests, labels = table["digest"].to_numpy().astype(np.uint64), table["label"].to_numpy()
    ours, theirs = table["candidate"].to_numpy(), table[reference].to_numpy()
    if "candidate_probability" not in table.column_names:
        return NumberOutcomes(digests, labels, np.square(ours - labels), np.square(theirs - labels))
    return ClassOutcomes(
        digests=digests,
        labels=labels,
        candidate=ours == labels,
        reference=theirs == labels,
        candidate_loss=_log_loss(table, "candidate"),
        reference_loss=_log_loss(table, reference),
    )


def _log_loss(table: pa.Table, model: Side) -> Differences:
    """-ln(probability of the true class) in nats, clipped as in :mod:`training.problems.classification`."""
    truth = table[f"{model}_probability"].to_numpy().astype(np.float64)
    loss: Differences = -np.log(np.clip(truth, _SMALLEST, 1 - _SMALLEST))
    return loss


def _rows_digest(digests: Digests, labels: npt.NDArray[np.int64] | Differences) -> str:
    """Digest of (digest, label) of all rows, in an order that follows from the values alone."""
    order = np.lexsort((labels, digests))
    whole = np.issubdtype(labels.dtype, np.integer)
    bits = labels.astype(np.uint64) if whole else labels.astype(np.float64).view(np.uint64)
    content = np.stack([digests[order], bits[order]])
    return hashlib.sha256(content.astype("<u8").tobytes()).hexdigest()


def _summed(digests: Digests, differences: Differences) -> tuple[Digests, Differences]:
    """Each digest once, with the sum of its differences."""
    once, places = np.unique(digests, return_inverse=True)
    return once, np.bincount(places, weights=differences, minlength=len(once)).astype(np.float64)


def _statistic(differences: Differences) -> float:
    """Sum of the differences in standard deviations, if each sign is random."""
    size = float(np.sqrt(np.square(differences).sum()))
    return float(differences.sum()) / size if size else 0.0


def _sign_flip_test(flips: Differences, differences: Differences) -> tuple[float, float]:
    """(p, statistic) of the test by random signs: the share of flips whose sum reaches that of the differences.

    B. Phipson and G. Smyth, Statistical Applications in Genetics and Molecular Biology 9 (2010) 39: the observed signs
    count as one of the flips, so that the p-value is valid.
    """
    p = float((1 + (flips >= float(differences.sum())).sum()) / (FLIPS + 1))
    return p, _statistic(differences)


def _studentised(differences: Differences) -> tuple[float, float]:
    """(p, statistic) of the hypothesis that the mean is 0, for differences whose distribution may be skewed.

    The mean in standard errors, or the same corrected for skewness where that is smaller
    (:func:`training.problems.regression.skewness_corrected`), is compared with Student's distribution. This assumes
    that the differences are independent, and so many that rare large ones are among them. Of a candidate whose error
    grew by three rows among thousands, the test passes about twice as many as it should, as samples without such rows
    give no sign of them.
    """
    from scipy.stats import norm, t

    if len(differences) < 2:
        return 1.0, 0.0
    deviation = float(differences.std(ddof=1))
    if not deviation:  # all differences are equal: no more evidence than that of as many random signs
        return _with_p(_statistic(differences))
    score = math.sqrt(len(differences)) * float(differences.mean()) / deviation
    score = min(score, skewness_corrected(differences))
    p = min(max(float(t.sf(score, len(differences) - 1)), _LEAST_P), _MOST_P)
    return p, float(norm.isf(p))


def _with_p(score: float) -> tuple[float, float]:
    from scipy.stats import norm

    return float(norm.sf(score)), score
