"""What `predict` writes for a problem that predicts one number for each row."""

from types import ModuleType

from tasks.problems.regression import outputs as outputs_of_numbers
from training.problems.mean_errors import MeanErrorMethods


def part_for(problem: MeanErrorMethods) -> ModuleType:
    """The outputs of a regression; see :class:`tasks.inference.outputs.OutputsOfProblem`."""
    del problem
    return outputs_of_numbers
