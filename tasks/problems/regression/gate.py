"""How the gate compares two regression models: by their squared errors, row by row."""

import math
from dataclasses import dataclass

import numpy as np
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
from tasks.gate.signs import Differences, Digests
from tasks.problems.regression.measures import SquaredError
from training.problems.skewed_means import skewness_corrected
from training.records import Evaluation, Question, Rule
from training.settings.schema import GateSettings

MEASURES = {"squared_error": SquaredError()}

_LEAST_P, _MOST_P = 1e-300, 1 - 1e-15  # p-values with a finite z, as every number in a look must be finite


@dataclass(frozen=True)
class NumberOutcomes:
    """Rows of a regression: digest, target, and the squared error of each model, in the target's unit squared.

    With `weights`, the errors are multiplied by these already.

    Another problem may give other errors, with the name of their `measure`. `in_points`: the errors are 1 - a metric
    between 0 and 1, and the margin is a part of this metric, not a share of the reference's error.

    Rows with the same digest are compared as one row, by the sum of their differences, because they may depend on
    each other, such as the rows of one group of `Table(group=...)`.
    """

    digests: Digests
    labels: Differences
    candidate_error: Differences
    reference_error: Differences
    measure: str = "squared_error"
    weights: Differences | None = None
    in_points: bool = False
    about: str = ""
    few_rows: bool = False

    def __len__(self) -> int:
        return len(self.digests)

    def rows_digest(self) -> str:
        """See :class:`tasks.gate.outcomes.Outcomes`."""
        return digest_of_rows(self.digests, self.labels, self.weights)

    def compared(self, question: Question, margin: float) -> Compared:
        """Compare squared errors; "not_worse" allows a mean squared error up to (1 + `margin`) times the reference's.

        "better", and "unless_worse" with exchanged roles, are tested by sign flips, which is exact if each model is
        equally likely to have either of a row's two errors. "not_worse" has no such symmetry, see
        :func:`_studentised`.
        """
        plain = self.reference_error - self.candidate_error
        allowed = margin if self.in_points else margin * self.reference_error
        asked = {"better": plain, "not_worse": plain + allowed, "unless_worse": -plain}[question]
        digests, differences = _summed(self.digests, asked)

        def test(flips: Differences) -> tuple[float, float]:
            if question == "not_worse":
                return _studentised(differences)
            return sign_flip_test(flips, differences)

        return Compared(
            measure=self.measure,
            digests=digests,
            differences=differences,
            test=test,
            uses_flips=question != "not_worse",
            few_rows=self.few_rows,
            gained=int((plain > 0).sum()),
            lost=int((plain < 0).sum()),
            difference=float(plain.mean()),
            reference_error=float(self.reference_error.mean()),
            standard_error=float(np.sqrt(np.square(differences).sum())) / len(self),
        )


def outcomes(rows: pa.Table, reference: Side) -> NumberOutcomes:
    """See :class:`tasks.gate.outcomes.GateOfProblem`."""
    labels, weights = rows["label"].to_numpy(), weights_of(rows)
    each = 1.0 if weights is None else weights
    ours, theirs = (each * np.square(rows[name].to_numpy() - labels) for name in ("candidate", reference))
    return NumberOutcomes(rows["digest"].to_numpy().astype(np.uint64), labels, ours, theirs, weights=weights)


def further_rules(evaluation: Evaluation, settings: GateSettings) -> tuple[Rule, ...]:
    """No rules: a regression has only the rules that all problems share."""
    del evaluation, settings
    return ()


def _summed(digests: Digests, differences: Differences) -> tuple[Digests, Differences]:
    """Each digest once, with the sum of its differences."""
    once, places = np.unique(digests, return_inverse=True)
    return once, np.bincount(places, weights=differences, minlength=len(once)).astype(np.float64)


def _studentised(differences: Differences) -> tuple[float, float]:
    """(p, statistic) of the hypothesis that the mean is 0, for differences whose distribution may be skewed.

    The test statistic, the mean in standard errors, is compared with Student's distribution. It is replaced by its
    value corrected for skewness (:func:`training.problems.skewed_means.skewness_corrected`) if that is smaller. The
    test assumes that the differences are independent, and that there are enough of them to include rare large
    differences. If a candidate's error grew because of three rows among thousands, the candidate passes about twice
    as often as it should, because samples without such rows give no sign of them.
    """
    from scipy.stats import norm, t

    if len(differences) < 2:
        return 1.0, 0.0
    deviation = float(differences.std(ddof=1))
    if not deviation:  # all differences are equal: only their signs are evidence
        return with_p(statistic_of(differences))
    score = math.sqrt(len(differences)) * float(differences.mean()) / deviation
    score = min(score, skewness_corrected(differences))
    p = min(max(float(t.sf(score, len(differences) - 1)), _LEAST_P), _MOST_P)
    return p, float(norm.isf(p))
