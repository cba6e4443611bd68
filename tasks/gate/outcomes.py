"""Outcomes of two models on the same rows, row by row: the input of a look."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.gate.signs import FLIPS, TIE, Differences, Digests, size_of
from tasks.problems import part_of
from training.problems.gate_metrics import is_own
from training.records import Evaluation, GateMetric, ProblemName, Question, Rule
from training.settings.schema import GateSettings

if TYPE_CHECKING:
    from tasks.gate.measures import MeasureOfLook

Side = Literal["candidate", "champion", "anchor", "baseline"]


@dataclass(frozen=True)
class Compared:
    """What a question compares: the difference of each row, positive in favour of the candidate, and its test.

    `test` gives (p, statistic) from the flipped sums of `differences` (:mod:`tasks.gate.signs`); the p-value is that of
    this comparison alone, the statistic is in standard deviations. `uses_flips`: whether it needs these sums.
    `second_p` is the p-value of a further test, which must be at most alpha for the candidate to pass (0: there is no
    further test). `few_rows`: so few rows decide that `gate.error_control=joint`, which holds for many rows, becomes
    strict. `gained` and `lost` count rows that speak for candidate and reference, `difference` is the mean
    difference of the models, without the margin. Of a regression, `reference_error` is the reference's mean squared
    error, and `standard_error` that of the mean of `differences`.
    """

    measure: str
    digests: Digests
    differences: Differences
    test: Callable[[Differences], tuple[float, float]]
    uses_flips: bool
    gained: int
    lost: int
    difference: float
    second_p: float = 0.0
    few_rows: bool = False
    reference_wrong: int = 0
    reference_error: float = 0.0
    standard_error: float = 0.0


class Outcomes(Protocol):
    """The compared rows, with what two models predicted for each."""

    @property
    def about(self) -> str:
        """What else the comparison is about: the metric of `gate.metric`; empty for the problem's own metric."""

    def __len__(self) -> int: ...

    def rows_digest(self) -> str:
        """Digest of the labelled rows; does not depend on their order."""

    def compared(self, question: Question, margin: float) -> Compared:
        """The comparison that answers `question`; `margin` is that of question "not_worse"."""


class GateOfProblem(Protocol):
    """The module `tasks/problems/<name>/gate.py`, or `MeanErrorGate` of a problem without it, has these names.

    `MEASURES` are the measures by which the problem's outcomes are compared, by :attr:`Look.measure`.
    """

    MEASURES: "Mapping[str, MeasureOfLook]"

    def outcomes(self, rows: pa.Table, reference: Side) -> Outcomes:
        """The outcomes of the compared rows of `predictions.parquet`.

        The columns are `digest`, `label`, those of :meth:`training.problems.base.Problem.row_columns`, and `weight`,
        of mean 1, if the rows have weights: each row's number is multiplied by its weight.
        """

    def further_rules(self, evaluation: Evaluation, settings: GateSettings) -> tuple[Rule, ...]:
        """Rules of this problem alone, for a candidate that is compared with a champion."""


def gate_of(problem: ProblemName) -> GateOfProblem:
    """The part of the gate that is about one problem."""
    return cast(GateOfProblem, part_of(problem, "gate"))


def read_outcomes(
    problem: ProblemName, predictions: Path, reference: Side, metric: GateMetric | None = None
) -> Outcomes:
    """Read the compared rows from the file `predictions.parquet` of a comparison.

    `metric` is that of the comparison, :attr:`Evaluation.metric`.
    """
    from tasks.problems import row_numbers  # which imports this module

    table = pq.read_table(predictions)
    rows = table.filter(table["compared"])
    if metric is None or is_own(metric, problem):
        return gate_of(problem).outcomes(rows, reference)
    return row_numbers.outcomes(rows, reference, metric)


def weights_of(rows: pa.Table) -> Differences | None:
    """The weights of compared rows; None if all rows count the same."""
    return rows["weight"].to_numpy() if "weight" in rows.column_names else None


def digest_of_rows(
    digests: Digests, labels: npt.NDArray[np.int64] | Differences, weights: Differences | None = None
) -> str:
    """Digest of (digest, label, weight) of all rows, in an order that follows from the values alone."""
    further = [] if weights is None else [weights]
    order = np.lexsort((*further, labels, digests))
    whole = np.issubdtype(labels.dtype, np.integer)
    bits = labels.astype(np.uint64) if whole else labels.astype(np.float64).view(np.uint64)
    of_weights = [weight[order].astype(np.float64).view(np.uint64) for weight in further]
    content = np.stack([digests[order], bits[order], *of_weights])
    return hashlib.sha256(content.astype("<u8").tobytes()).hexdigest()


def statistic_of(differences: Differences) -> float:
    """Sum of the differences in standard deviations, if each sign is random."""
    size = size_of(differences)
    return float(differences.sum()) / size if size else 0.0


def sign_flip_test(flips: Differences, differences: Differences) -> tuple[float, float]:
    """(p, statistic) of the test by random signs: the share of flips whose sum reaches that of the differences.

    B. Phipson and G. Smyth, Statistical Applications in Genetics and Molecular Biology 9 (2010) 39: the observed signs
    count as one of the flips, so that the p-value is valid. Sums that differ by rounding alone count as equal.
    """
    reached = float(differences.sum()) - TIE * size_of(differences)
    p = float((1 + (flips >= reached).sum()) / (FLIPS + 1))
    return p, statistic_of(differences)


def with_p(score: float) -> tuple[float, float]:
    """(p, statistic) of a standard normal score."""
    from scipy.stats import norm

    return float(norm.sf(score)), score
