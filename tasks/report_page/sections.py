"""The interface of a problem's part of the report. :func:`sections_of` finds it by the problem's name.

All other modules of the report are the same for every problem.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from tasks.problems import part_of
from tasks.report_page.figures import learning_curves
from tasks.report_page.inputs import ReportInputs
from tasks.report_page.measure import Measure
from tasks.report_page.tables import Measured
from training.records import Evaluation, ProblemName


@dataclass(frozen=True)
class Tile:
    """A further number in the headline of the page: its name, its value, and a note below."""

    name: str
    value: str
    note: str


class Sections(Protocol):
    """The module `tasks/problems/<name>/sections.py`, or `MeanErrorSections`, has these names.

    `MEASURE` is the problem's metric. `CONTENTS` lists the sections (anchor, title) of the template
    `sections.html.j2` beside the module, whose variables :meth:`context` gives. `WITHOUT_MEANING` names settings that
    the report leaves out, because the problem does not use them.
    """

    MEASURE: Measure
    CONTENTS: tuple[tuple[str, str], ...]
    WITHOUT_MEANING: tuple[str, ...]

    def measures(self, inputs: ReportInputs) -> Sequence[Measured]:
        """The rows of the table of scores."""

    def tiles(self, inputs: ReportInputs) -> Sequence[Tile]:
        """Further numbers of the headline."""

    def corrected(self, inputs: ReportInputs) -> str:
        """The gain of a promoted candidate, corrected for selection bias, as the start of a note; empty without one."""

    def agreement(self, evaluation: Evaluation) -> list[tuple[str, str, int]]:
        """(colour, description, number of rows) of the ways in which two models agree or differ on a row."""

    def context(self, inputs: ReportInputs) -> dict[str, Any]:
        """Variables of the template."""

    def summary_sentence(self, inputs: ReportInputs) -> str:
        """The candidate's result as the start of a sentence in Markdown, up to its confidence interval."""

    def figures(self, inputs: ReportInputs, folder: Path) -> list[Path]:
        """Draw the problem's pictures into `folder`; returns the files."""


def figures(inputs: ReportInputs, folder: Path) -> list[Path]:
    """Draw learning curves and the problem's pictures into `folder`; returns the files.

    Learning curves are left out without a finished epoch.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sections, trained = sections_of(inputs.dataset.problem), inputs.trained
    drawn = sections.figures(inputs, folder)
    if not trained.history:
        return drawn
    path = folder / "learning_curves.png"
    return [learning_curves(trained, path, sections.MEASURE, inputs.words.trainer), *drawn]


def sections_of(problem: ProblemName) -> Sections:
    """What the report shows of a learning problem."""
    return cast(Sections, part_of(problem, "sections"))
