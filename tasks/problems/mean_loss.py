"""A measure for problems whose models are compared by a mean loss, such as the loss per token of language models."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from tasks.gate.measures import Array, NotWorse, reference_word
from tasks.gate.needed import critical
from tasks.gate.wording import POWER, TOO_FEW, p_value
from tasks.problems.regression.measures import most_worse, rows_needed
from tasks.report_page import wording
from training.data.sources.wording import counted
from training.records import Look, Verdict


@dataclass(frozen=True)
class MeanLoss:
    """The mean of losses of at least 0, lower is better; see :class:`tasks.gate.measures.MeasureOfLook`.

    `metric` is the metric's name in a sentence, such as "perplexity"; `spelled` writes a mean loss as that metric.
    `mean` names the mean loss, `row` a row. `losses` gives the rows' losses from their targets and a column of
    `predictions.parquet`, whose name is that of the model with `ending`.
    `is_share`: the metric is 1 - loss, so that a higher one is better, and `gate.margin` is a part of it in points.
    """

    metric: str
    mean: str
    row: str
    spelled: Callable[[float], str]
    losses: Callable[[Array, Array], Array]
    is_share: bool = False
    ending: str = ""
    better_by_flips: ClassVar[bool] = True

    def values(self, look: Look) -> tuple[float, float]:
        """Both mean losses."""
        return _loss(look), look.reference_error

    def spell(self, value: float) -> str:
        """A mean loss as the metric."""
        return self.spelled(value)

    def change(self, look: Look) -> str:
        """Both values of the metric."""
        ours, theirs = map(self.spelled, self.values(look))
        return f"{self.metric} {ours} against {theirs} on {counted(look.rows, self.row)}"

    def compared(self, look: Look) -> str:
        """Both values of the metric, and the numbers of rows on which each of the models has the lower loss."""
        ours, theirs = map(self.spelled, self.values(look))
        text = f"{self.metric} {ours} against {theirs} of the {reference_word(look)}; the candidate"
        rows = counted(look.gained, self.row)
        if self.is_share:
            return f"{text} is better on {rows}, worse on {look.lost:,}"
        return f"{text}'s loss is lower on {rows}, higher on {look.lost:,}"

    def would_need(self, look: Look) -> str:
        """The value that would pass, and the number of rows on which the measured one would pass."""
        most, rows = self._needed(look), self._rows_needed(look)
        on = f"on these {look.rows:,} {self.row}s"
        if most is None:
            text = f". No {self.metric} would be shown to be better {on}: test on more"
        else:
            text = f". To pass {on}, the {self.metric} must be {self._limit} about {self.spelled(most)}"
        if rows is not None:
            text += (
                f"; a true {self.metric} of {self.spelled(_loss(look))} would pass on about {rows:,} test "
            )
            text += f"{self.row}s {POWER}"
        return text

    def not_worse(self, look: Look) -> NotWorse:
        """A look passes if its statistic exceeds the limit: the loss grew by less than `gate.margin`."""
        z = critical(look)
        value, limit = (look.p, look.level) if z is None else (look.statistic, z)
        changed = f"{self._grown(look)} allowed: {p_value(look.p)}, z = {look.statistic:.2f}"
        remedy = ""
        if z is not None and (needed := self._rows_needed(look)) is not None:
            remedy = (
                f". Some {needed:,} test {self.row}s could show it, if the true change is the measured one"
            )
        elif z is not None and self._margin(look) <= z * look.standard_error:
            remedy = (
                f". {look.rows:,} {self.row}s are {TOO_FEW}: test on more {self.row}s or raise gate.margin"
            )
        return NotWorse(value, limit, changed, remedy)

    def at_worst(self, look: Look) -> str:
        """The metric that belongs to the lower bound of the difference of the mean losses."""
        most = self.spelled(look.reference_error + most_worse(look))
        return (
            f"at worst at {self.metric} {most} where the reference has {self.spelled(look.reference_error)}"
        )

    def facts(self, look: Look, verdict: Verdict) -> list[tuple[str, str]]:
        """The measured and the needed value of the metric."""
        del verdict
        name = self.metric
        measured = f"{self.spelled(_loss(look))} against {self.spelled(look.reference_error)}"
        facts = [(f"Measured {name}", measured)]
        if look.passed:
            return facts
        most = self._needed(look)
        if look.question == "better" and most is not None:
            needed = f"{name[0].upper()}{name[1:]} needed on these {self.row}s"
            facts.append((needed, f"{self._limit} {self.spelled(most)}"))
        rows = self._rows_needed(look)
        return facts if rows is None else [*facts, wording.rows_fact(rows)]

    def recounted(
        self, look: Look, labels: Array, columns: Mapping[str, Array], other: str
    ) -> dict[str, tuple[float, float]]:
        """The reference's mean loss, the difference, and the rows on which each model has the lower loss."""
        ours, theirs = (self.losses(labels, columns[name + self.ending]) for name in ("candidate", other))
        return {
            self.mean: (look.reference_error, float(theirs.mean())),
            "difference": (look.difference, float((theirs - ours).mean())),
            f"{self.row}s with lower loss": (look.gained, int((ours < theirs).sum())),
            f"{self.row}s with higher loss": (look.lost, int((ours > theirs).sum())),
        }

    @property
    def _limit(self) -> str:
        return "at least" if self.is_share else "at most"

    def _margin(self, look: Look) -> float:
        """By how much the mean loss may grow."""
        return look.margin if self.is_share else look.margin * look.reference_error

    def _grown(self, look: Look) -> str:
        """How the metric changes, and by how much it may."""
        if self.is_share:
            return (
                f"the {self.metric} changes by {100 * look.difference:+.2f} points, {-100 * look.margin:+.2f}"
            )
        grown = (
            f"{-100 * look.difference / look.reference_error:+.2f} %" if look.reference_error else "from 0"
        )
        return f"the {self.mean} changes by {grown}, {100 * look.margin:+.2f} %"

    def _needed(self, look: Look) -> float | None:
        """Largest mean loss that passes on these rows with the same standard error; None when none passes."""
        z = critical(look)
        if z is None:
            return None
        most = look.reference_error + self._margin(look) - z * look.standard_error
        return most if most > 0 else None

    def _rows_needed(self, look: Look) -> int | None:
        return rows_needed(look, self._margin(look))


def _loss(look: Look) -> float:
    """The candidate's mean loss."""
    return max(0.0, look.reference_error - look.difference)
