"""The measure by which looks compare regression models: the squared error."""

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import ClassVar

import numpy as np

from tasks.gate.measures import Array, NotWorse, reference_word
from tasks.gate.needed import POWER_Z, critical
from tasks.gate.wording import POWER, TOO_FEW, p_value
from tasks.report_page import wording
from training.data.sources.wording import counted
from training.problems.regression import shown
from training.records import Look, Verdict


class SquaredError:
    """The mean squared error; see :class:`tasks.gate.measures.MeasureOfLook`."""

    better_by_flips: ClassVar[bool] = True
    metric: ClassVar[str] = "RMSE"

    def values(self, look: Look) -> tuple[float, float]:
        """Both RMSEs."""
        return _rmse(look), math.sqrt(look.reference_error)

    def spell(self, value: float) -> str:
        """An RMSE."""
        return shown(value)

    def change(self, look: Look) -> str:
        """Both RMSEs."""
        ours, theirs = map(shown, self.values(look))
        return f"RMSE {ours} against {theirs} on {counted(look.rows, 'row')}"

    def compared(self, look: Look) -> str:
        """Both RMSEs, and the numbers of rows on which each of the models has the smaller error."""
        ours, theirs = map(shown, self.values(look))
        return (
            f"RMSE {ours} against {theirs} of the {reference_word(look)}; the "
            f"candidate's squared error is lower on {counted(look.gained, 'row')}, higher on {look.lost:,}"
        )

    def would_need(self, look: Look) -> str:
        """The RMSE that would pass, and the number of rows on which the measured RMSE would pass."""
        most, rows = error_needed(look), rows_needed(look)
        if most is None:
            text = f". No RMSE would be shown to be better on these {look.rows:,} rows: test on more rows"
        else:
            text = f". To pass on these {look.rows:,} rows, the RMSE must be at most about {shown(most)}"
        if rows is not None:
            text += f"; a true RMSE of {shown(_rmse(look))} would pass on about {rows:,} test rows {POWER}"
        return text

    def not_worse(self, look: Look) -> NotWorse:
        """A look passes if its statistic exceeds the limit: the error grew by less than the share `gate.margin`."""
        z, margin, rows = critical(look), look.margin, look.rows
        value, limit = (look.p, look.level) if z is None else (look.statistic, z)
        grown = (
            f"{-100 * look.difference / look.reference_error:+.2f} %" if look.reference_error else "from 0"
        )
        changed = (
            f"the mean squared error changes by {grown}, {100 * margin:+.2f} % allowed: {p_value(look.p)}, "
            f"z = {look.statistic:.2f}"
        )
        remedy = ""
        if z is not None and (needed := rows_needed(look)) is not None:
            remedy = f". Some {needed:,} test rows could show it, if the true change is the measured one"
        elif z is not None and margin * look.reference_error <= z * look.standard_error:
            remedy = f". {rows:,} rows are {TOO_FEW}: test on more rows or raise gate.margin"
        return NotWorse(value, limit, changed, remedy)

    def at_worst(self, look: Look) -> str:
        """The RMSE that belongs to the lower bound of the difference of the mean squared errors."""
        most = math.sqrt(look.reference_error + most_worse(look))
        return (
            f"at worst at RMSE {shown(most)} where the reference has {shown(math.sqrt(look.reference_error))}"
        )

    def facts(self, look: Look, verdict: Verdict) -> list[tuple[str, str]]:
        """The measured and the needed RMSE, in the unit of the target."""
        del verdict
        against = wording.number(math.sqrt(look.reference_error))
        facts = [("Measured RMSE", f"{wording.number(_rmse(look))} against {against}")]
        if look.passed:
            return facts
        most = error_needed(look)
        if look.question == "better" and most is not None:
            facts.append(("RMSE needed on these rows", f"at most {wording.number(most)}"))
        rows = rows_needed(look)
        return facts if rows is None else [*facts, wording.rows_fact(rows)]

    def recounted(
        self, look: Look, labels: Array, columns: Mapping[str, Array], other: str
    ) -> dict[str, tuple[float, float]]:
        """The reference's mean squared error, the difference, and the rows on which each model's error is smaller."""
        each = columns.get("weight", np.float64(1))
        ours, theirs = (each * np.square(columns[name] - labels) for name in ("candidate", other))
        return {
            "mean squared error": (look.reference_error, float(theirs.mean())),
            "difference": (look.difference, float((theirs - ours).mean())),
            "rows with smaller error": (look.gained, int((ours < theirs).sum())),
            "rows with larger error": (look.lost, int((ours > theirs).sum())),
        }


def most_worse(look: Look) -> float:
    """By how much the candidate's mean error could be above the reference's, at least 0; one-sided.

    By the normal approximation.
    """
    return max(0.0, NormalDist().inv_cdf(1 - look.alpha) * look.standard_error - look.difference)


def _rmse(look: Look) -> float:
    """The candidate's RMSE."""
    return math.sqrt(max(0.0, look.reference_error - look.difference))


def error_needed(look: Look) -> float | None:
    """Largest RMSE that passes on these rows with the same standard error; None when no RMSE passes.

    For a look at squared errors, by the normal approximation.
    """
    z = critical(look)
    if z is None:
        return None
    most = (1 + look.margin) * look.reference_error - z * look.standard_error
    return math.sqrt(most) if most > 0 else None


def rows_needed(look: Look, margin: float | None = None) -> int | None:
    """Number of test rows at which a true difference equal to the measured one passes with 80 % power.

    None when no number of rows is enough. The formula is n ((z + 0.84) s / d)^2 for a look at n rows, on which the
    mean difference d, with the margin, has the standard error s. `margin` is the margin in the unit of d, by default
    the share `look.margin` of the reference's error.
    """
    z = critical(look)
    difference = look.difference + (look.margin * look.reference_error if margin is None else margin)
    if z is None or difference <= 0:
        return None
    return math.ceil(look.rows * ((z + POWER_Z) * look.standard_error / difference) ** 2)
