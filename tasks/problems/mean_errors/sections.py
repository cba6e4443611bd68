"""What the report shows of a problem that is scored by a mean error: the metric, and the largest errors."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tasks.problems.largest_errors import largest_errors
from tasks.report_page.inputs import ReportInputs
from tasks.report_page.measure import Measure
from tasks.report_page.sections import Tile
from tasks.report_page.tables import Measured, speed_measures
from tasks.report_page.wording import number
from training.problems.mean_errors import MeanErrorMethods
from training.records import Evaluation, LargestError


@dataclass(frozen=True)
class MeanErrorSections:
    """See :class:`tasks.report_page.sections.Sections`."""

    problem: MeanErrorMethods
    MEASURE: Measure
    CONTENTS: ClassVar = (("errors", "Largest errors"),)
    WITHOUT_MEANING: ClassVar = ("gate.max_class_drop",)

    def measures(self, inputs: ReportInputs) -> tuple[Measured, ...]:
        """The metric, and how fast the model is."""
        return (
            Measured(
                self.MEASURE.title,
                self.problem.metric,
                "mean over the test rows; lower is better; its interval takes the rows as independent",
                False,
                False,
            ),
            Measured("Share removed", "removed", "of the error of a constant prediction", True, True),
            *speed_measures(inputs.words.row, "rows_per_s"),
        )

    def tiles(self, inputs: ReportInputs) -> tuple[Tile, ...]:
        """No further numbers in the headline."""
        del inputs
        return ()

    def corrected(self, inputs: ReportInputs) -> str:
        """Empty: the gate corrects the selection bias of accuracies alone."""
        del inputs
        return ""

    def agreement(self, evaluation: Evaluation) -> list[tuple[str, str, int]]:
        """Nothing, because a number is not simply right or wrong."""
        del evaluation
        return []

    def context(self, inputs: ReportInputs) -> dict[str, Any]:
        """Variables of the template."""
        problem = self.problem

        def error(record: LargestError) -> str:
            (row_error,) = problem.row_errors(np.array([record.truth]), np.array([record.predicted]))
            return number(float(row_error))

        return largest_errors(inputs, "The test rows with the candidate's largest errors.", error)

    def summary_sentence(self, inputs: ReportInputs) -> str:
        """The metric on the test rows, as the start of a sentence."""
        figure = self.problem.figure(inputs.evaluation.candidate)
        return f"{self.MEASURE.title} **{figure}** on {inputs.evaluation.rows:,} test rows"

    def figures(self, inputs: ReportInputs, folder: Path) -> list[Path]:
        """No pictures."""
        del inputs, folder
        return []


def part_for(problem: MeanErrorMethods) -> MeanErrorSections:
    """The sections of one problem."""
    word = problem.metric_word
    title = word[0].upper() + word[1:]
    return MeanErrorSections(problem, Measure(problem.metric, title, word, False, problem.greater_is_better))
