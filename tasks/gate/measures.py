"""The interface of a measure by which looks compare models, such as the accuracy; :func:`measure_of` finds it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from tasks.gate.outcomes import gate_of
from training.records import Look, Verdict
from training.seams import PROBLEMS

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class NotWorse:
    """The numbers of question "not_worse": the rule compares `value` with `limit`.

    `changed` says what changed and what is allowed, `remedy` what a failed look would have needed.
    """

    value: float
    limit: float
    changed: str
    remedy: str


class MeasureOfLook(Protocol):
    """Texts and numbers that describe a look by this measure."""

    @property
    def better_by_flips(self) -> bool:
        """Whether question "better" is tested by sign flips, whose p-values have a lower limit."""

    def values(self, look: Look) -> tuple[float, float]:
        """The metric of the candidate and of the reference."""

    def spell(self, value: float) -> str:
        """A value of the metric, for a sentence."""

    @property
    def metric(self) -> str:
        """Name of the metric, in a sentence."""

    def change(self, look: Look) -> str:
        """What the new model did otherwise than the reference, for people who do not read statistics."""

    def compared(self, look: Look) -> str:
        """What was measured, as the start of a rule's explanation."""

    def would_need(self, look: Look) -> str:
        """What a failed look of question "better" would have needed: sentences that begin with a full stop, or ""."""

    def not_worse(self, look: Look) -> NotWorse:
        """A look of question "not_worse"."""

    def at_worst(self, look: Look) -> str:
        """How much worse than the reference the candidate could be: a one-sided interval at `gate.confidence`."""

    def facts(self, look: Look, verdict: Verdict) -> list[tuple[str, str]]:
        """(name, value) pairs for the report."""

    def recounted(
        self, look: Look, labels: Array, columns: Mapping[str, Array], other: str
    ) -> dict[str, tuple[float, float]]:
        """(recorded, computed again) by name, from `predictions.parquet`; `other` is the reference's column."""


def reference_word(look: Look) -> str:
    """The model that a look compares the candidate with, as a noun."""
    if look.baseline:
        return "baseline"
    return "champion" if look.question == "better" else "reference"


def measure_of(look: Look) -> MeasureOfLook:
    """The measure of a look: `MEASURES` of a problem's part of the gate has the measure by name.

    Raises ValueError for a measure of no problem.
    """
    from tasks.problems.row_numbers import MEASURES  # which imports this module

    if look.measure in MEASURES:
        return MEASURES[look.measure]
    for problem in PROBLEMS:
        if (measure := gate_of(problem).MEASURES.get(look.measure)) is not None:
            return measure
    raise ValueError(
        f"look {look.number}: measure {look.measure!r} is not known to this version of Evergreen"
    )
