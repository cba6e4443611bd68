"""The measures by which looks compare classifiers: accuracy, and log loss if neither model makes a mistake."""

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import ClassVar

from tasks.gate.measures import Array, NotWorse, reference_word
from tasks.gate.needed import POWER_Z, critical
from tasks.gate.paired import difference_bound
from tasks.gate.wording import POWER, TOO_FEW, percent, points
from tasks.report_page import wording
from training.data.sources.wording import counted
from training.records import Look, Verdict

Fact = tuple[str, str]


class Accuracy:
    """The share of rows that a model classifies right; see :class:`tasks.gate.measures.MeasureOfLook`."""

    better_by_flips: ClassVar[bool] = False
    metric: ClassVar[str] = "accuracy"

    def values(self, look: Look) -> tuple[float, float]:
        """Both accuracies."""
        right = look.rows - look.reference_wrong
        return (right + look.gained - look.lost) / look.rows, right / look.rows

    def spell(self, value: float) -> str:
        """An accuracy in percent."""
        return percent(value)

    def change(self, look: Look) -> str:
        """How many more or fewer rows the new model got right."""
        more = look.gained - look.lost
        word = "as many" if not more else f"{abs(more):,} {'more' if more > 0 else 'fewer'}"
        return f"the new model got {word} of {counted(look.rows, 'row')} right"

    def compared(self, look: Look) -> str:
        """Numbers of rows that only one of the models got right."""
        rows, other = counted(look.gained, "row"), reference_word(look)
        return f"the candidate alone is right on {rows}, the {other} alone on {look.lost:,}"

    def would_need(self, look: Look) -> str:
        """The gain in points that would pass, and the number of rows on which the measured gain would pass."""
        gain, rows = gain_needed(look), rows_needed(look)
        text = f". To pass on these {look.rows:,} rows, the gain must be at least about {100 * (gain or 0):.2f} points"
        if gain is not None and gain * look.rows > look.reference_wrong:
            text += (
                f", more than correcting the {reference_word(look)}'s {counted(look.reference_wrong, 'mistake')} would "
                f"give: test on more rows{'' if look.baseline else ' or set gate.policy=not_worse'}"
            )
        if rows is not None:
            text += (
                f"; a true gain of {100 * look.difference:.2f} points would pass on about {rows:,} test rows "
            )
            text += POWER
        return text

    def not_worse(self, look: Look) -> NotWorse:
        """The lower bound of the paired difference in accuracy, at the look's boundary, is above -`gate.margin`."""
        z, margin, rows = critical(look), look.margin, look.rows
        bound = -1.0 if z is None else difference_bound(look.gained, look.lost, rows, z)
        changed = (
            f"accuracy changes by {points(look.gained - look.lost, rows)}, at worst by {100 * bound:+.2f}; "
            f"{-100 * margin:+.2f} allowed"
        )
        remedy = ""
        if z is not None and 0 < margin <= -difference_bound(0, 0, rows, z):
            remedy = f". {rows:,} rows are {TOO_FEW}: test on more rows or raise gate.margin"
        elif margin and (needed := rows_needed(look)) is not None:
            remedy = f". Some {needed:,} test rows could show it, if the true change is the measured one"
        return NotWorse(bound, -margin, changed, remedy)

    def at_worst(self, look: Look) -> str:
        """The lower bound of the paired difference in accuracy."""
        bound = difference_bound(look.gained, look.lost, look.rows, NormalDist().inv_cdf(1 - look.alpha))
        return f"at worst {max(0.0, -100 * bound):.2f} points less accurate"

    def facts(self, look: Look, verdict: Verdict) -> list[Fact]:
        """The gain in percentage points: measured, corrected for selection bias, and needed."""
        facts = [("Measured gain", f"{wording.points(look.difference)} points")]
        choice = verdict.choice
        if choice is not None and look.question == "better":
            facts.append(
                ("Gain corrected for selection bias", f"{wording.points(choice.corrected_gain)} points")
            )
            facts.append(
                ("Accuracy corrected for selection bias", wording.percent(choice.corrected_accuracy))
            )
        if look.passed:
            return facts
        gain = gain_needed(look)
        if look.question == "better" and gain is not None:
            facts.append(("Gain needed on these rows", f"{wording.points(gain)} points"))
        rows = rows_needed(look)
        return facts if rows is None else [*facts, wording.rows_fact(rows)]

    def recounted(
        self, look: Look, labels: Array, columns: Mapping[str, Array], other: str
    ) -> dict[str, tuple[float, float]]:
        """Net rows: the rows that the candidate got right minus the rows that the other model got right."""
        right, theirs = (int((columns[name] == labels).sum()) for name in ("candidate", other))
        return {"net rows": (look.gained - look.lost, right - theirs)}


class LogLoss(Accuracy):
    """The log loss of two models that are right on all rows."""

    better_by_flips: ClassVar[bool] = True

    def change(self, look: Look) -> str:
        """That there are no mistakes, and which model is surer of its answers."""
        word = "surer" if look.difference > 0 else "not surer"
        return f"both models got all {look.rows:,} rows right, and the new one is {word} of its answers"

    def compared(self, look: Look) -> str:
        """Numbers of rows on which the candidate has the lower and the higher log loss."""
        return (
            f"neither model makes a mistake, so log loss decides: lower on {look.gained:,} rows, higher on "
            f"{look.lost:,}"
        )

    def would_need(self, look: Look) -> str:
        """Nothing, because no gain in accuracy is possible."""
        del look
        return ""

    def facts(self, look: Look, verdict: Verdict) -> list[Fact]:
        """No facts."""
        del look, verdict
        return []

    def recounted(
        self, look: Look, labels: Array, columns: Mapping[str, Array], other: str
    ) -> dict[str, tuple[float, float]]:
        """Nothing, because both models are right on all rows."""
        del look, labels, columns, other
        return {}


def gain_needed(look: Look) -> float | None:
    """Smallest gain in accuracy that passes with equally many rows and discordant rows; None when no gain passes."""
    z = critical(look)
    if z is None:
        return None
    # A gain of w rows needs at least w discordant rows, and w / sqrt(w) > z only for w > z**2.
    discordant = look.gained + look.lost
    gain = math.floor(max(z * math.sqrt(discordant), z * z)) + 1
    if gain <= discordant:
        gain += (discordant - gain) % 2  # gained - lost is even exactly if gained + lost is
    return gain / look.rows


def rows_needed(look: Look) -> int | None:
    """Number of test rows at which a true difference equal to the measured one passes with 80 % power.

    None when no number of rows is enough. The formula is ((z sqrt(q) + 0.84 sqrt(q - d^2)) / d)^2 for a share q of
    discordant rows and a difference d, which includes the margin for question "not_worse"; R. Connor, Biometrics 43
    (1987) 207-211.
    """
    z = critical(look)
    difference = look.difference + look.margin
    if z is None or difference <= 0:
        return None
    share = max((look.gained + look.lost) / look.rows, abs(difference), z * z / look.rows)
    spread = z * math.sqrt(share) + POWER_Z * math.sqrt(max(0.0, share - difference**2))
    return math.ceil((spread / difference) ** 2)
