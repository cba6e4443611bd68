"""A problem's metric on the page, in the Markdown and in the pictures: its name, its values and its changes."""

from dataclasses import dataclass

from tasks.report_page.wording import Tone, compact, number, percent, points, relative, tone_of
from training.percentages import percent_text
from training.records import Score


@dataclass(frozen=True)
class Measure:
    """How the metric `name`, a field of the problem's score record, is written.

    `title` is a heading, and `word` stands inside a sentence. `is_share` says that values lie between 0 and 1 and are
    written as percentages.
    """

    name: str
    title: str
    word: str
    is_share: bool
    greater_is_better: bool

    def of(self, score: Score) -> float:
        """The metric of a model."""
        return float(getattr(score, self.name))

    def spell(self, value: float) -> str:
        """`value` in text."""
        return percent(value) if self.is_share else number(value)

    def tick(self, value: float) -> str:
        """`value` at an axis."""
        return f"{100 * value:.4g}\N{NO-BREAK SPACE}%" if self.is_share else compact(value)

    def bare(self, value: float) -> str:
        """`value` in text without a unit, for the lower end of an interval."""
        return percent_text(value) if self.is_share else number(value)

    def change(self, value: float) -> str:
        """A difference of two values, with its sign; in percentage points for shares."""
        return points(value) if self.is_share else relative(value)

    @property
    def unit(self) -> str:
        """Unit of :meth:`change`; empty for the unit of the target."""
        return "points" if self.is_share else ""

    def tone(self, change: float) -> Tone:
        """Whether a change is an improvement."""
        return tone_of(change, self.greater_is_better)
