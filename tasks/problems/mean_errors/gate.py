"""How the gate compares two models of a problem that is scored by a mean error: row by row, by their errors."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tasks.gate.measures import MeasureOfLook
from tasks.gate.outcomes import Side
from tasks.problems.mean_loss import MeanLoss
from tasks.problems.regression.gate import NumberOutcomes
from training.problems.mean_errors import MeanErrorMethods
from training.records import Evaluation, Rule
from training.settings.schema import GateSettings


@dataclass(frozen=True)
class MeanErrorGate:
    """See :class:`tasks.gate.outcomes.GateOfProblem`. The tests are those of a regression's errors."""

    problem: MeanErrorMethods
    MEASURES: Mapping[str, MeasureOfLook]

    def outcomes(self, rows: pa.Table, reference: Side) -> NumberOutcomes:
        """See :class:`tasks.gate.outcomes.GateOfProblem`."""
        labels = rows["label"].to_numpy()
        ours, theirs = (
            self.problem.compared_errors(labels, rows[name].to_numpy()) for name in ("candidate", reference)
        )
        digests = rows["digest"].to_numpy().astype(np.uint64)
        return NumberOutcomes(digests, labels.astype(np.float64), ours, theirs, self.problem.metric)

    def further_rules(self, evaluation: Evaluation, settings: GateSettings) -> tuple[Rule, ...]:
        """No rules: such a problem has only the rules that all problems share."""
        del evaluation, settings
        return ()


def part_for(problem: MeanErrorMethods) -> MeanErrorGate:
    """The gate of one problem, which compares by the metric."""
    word = problem.metric_word
    measure = MeanLoss(word, word, problem.row_word, problem.spell, problem.compared_errors)
    return MeanErrorGate(problem, {problem.metric: measure})
