"""The measure by which looks compare classifiers of rows with weights: the share of all weight that is right."""

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from tasks.gate.measures import Array, NotWorse, reference_word
from tasks.gate.needed import POWER_Z, critical
from tasks.gate.wording import POWER, p_value
from tasks.report_page import wording
from training.data.sources.wording import counted
from training.percentages import share_text
from training.records import Look, Verdict


class WeightedAccuracy:
    """Accuracy in which a row counts by its weight; see :class:`tasks.gate.measures.MeasureOfLook`.

    A row's number is its weight, of mean 1 over the compared rows, if the class is right, else 0.
    """

    better_by_flips: ClassVar[bool] = True
    metric: ClassVar[str] = "weighted accuracy"

    def values(self, look: Look) -> tuple[float, float]:
        """Both weighted accuracies."""
        return _share(look), 1 - look.reference_error

    def spell(self, value: float) -> str:
        """A weighted accuracy with four decimals, or more that tell it from 0 and 1."""
        return share_text(value)

    def change(self, look: Look) -> str:
        """Both weighted accuracies, and the number of rows."""
        ours, theirs = map(self.spell, self.values(look))
        return f"{self.metric} {ours} against {theirs} on {counted(look.rows, 'row')}"

    def compared(self, look: Look) -> str:
        """Both weighted accuracies, and the numbers of rows that only one of the models got right."""
        other, (ours, theirs) = reference_word(look), map(self.spell, self.values(look))
        return (
            f"{self.metric} {ours} against {theirs} of the {other}; the candidate alone is right on "
            f"{counted(look.gained, 'row')}, the {other} alone on {look.lost:,}"
        )

    def would_need(self, look: Look) -> str:
        """The gain in points that would pass, and the number of rows on which the measured gain would pass."""
        gain, rows = _gain_needed(look), _rows_needed(look)
        text = ". No gain would be shown on these rows: test on more rows"
        if gain is not None:
            text = f". To pass on these {look.rows:,} rows, the gain must be at least about {100 * gain:.2f} points"
        if rows is not None:
            gained = f"{100 * look.difference:.2f} points"
            text += f"; a true gain of {gained} would pass on about {rows:,} test rows {POWER}"
        return text

    def not_worse(self, look: Look) -> NotWorse:
        """A look passes if its statistic exceeds the limit: the loss is shown to be less than `gate.margin`."""
        z = critical(look)
        value, limit = (look.p, look.level) if z is None else (look.statistic, z)
        changed = (
            f"weighted accuracy changes by {100 * look.difference:+.2f} points, {-100 * look.margin:+.2f} allowed: "
            f"{p_value(look.p)}, z = {look.statistic:.2f}"
        )
        remedy = ""
        if z is not None and (needed := _rows_needed(look)) is not None:
            remedy = f". Some {needed:,} test rows could show it, if the true change is the measured one"
        return NotWorse(value, limit, changed, remedy)

    def facts(self, look: Look, verdict: Verdict) -> list[tuple[str, str]]:
        """The measured and the needed gain in points."""
        del verdict
        facts = [("Measured gain", f"{wording.points(look.difference)} points of weighted accuracy")]
        if look.passed:
            return facts
        gain = _gain_needed(look)
        if look.question == "better" and gain is not None:
            facts.append(("Gain needed on these rows", f"{wording.points(gain)} points"))
        rows = _rows_needed(look)
        return facts if rows is None else [*facts, wording.rows_fact(rows)]

    def recounted(
        self, look: Look, labels: Array, columns: Mapping[str, Array], other: str
    ) -> dict[str, tuple[float, float]]:
        """The reference's weighted error, the difference, and the rows that only one of the models got right."""
        ours, theirs = (columns[name] == labels for name in ("candidate", other))
        weights = columns["weight"]
        plain = weights * (ours.astype(np.float64) - theirs)
        return {
            "weighted error": (look.reference_error, float((weights * ~theirs).mean())),
            "difference": (look.difference, float(plain.mean())),
            "rows that the candidate alone got right": (look.gained, int((plain > 0).sum())),
            "rows that the other alone got right": (look.lost, int((plain < 0).sum())),
        }


def _share(look: Look) -> float:
    """The candidate's weighted accuracy."""
    return min(1.0, max(0.0, 1 - look.reference_error + look.difference))


def _gain_needed(look: Look) -> float | None:
    """Smallest gain that passes with the same standard error, by the normal approximation; None: none passes."""
    z = critical(look)
    return None if z is None or not look.standard_error else z * look.standard_error


def _rows_needed(look: Look) -> int | None:
    """Rows at which a true difference equal to the measured one passes with 80 % power; None: no number is enough.

    n ((z + 0.84) s / d)^2 for a look at n rows, on which the mean difference d, with the margin, has the standard
    error s.
    """
    z, difference = critical(look), look.difference + look.margin
    if z is None or difference <= 0 or not look.standard_error:
        return None
    return math.ceil(look.rows * ((z + POWER_Z) * look.standard_error / difference) ** 2)
