"""The parts of the pipeline's tasks that depend on the problem: a folder for each problem, with the same modules.

`gate.py` compares the rows of two models (:class:`tasks.gate.outcomes.GateOfProblem`), `outputs.py` defines what
`predict` writes (:class:`tasks.inference.outputs.OutputsOfProblem`), and `sections.py` with its template is the
problem's part of the report (:class:`tasks.report_page.sections.Sections`).
"""

from importlib import import_module
from typing import Any, Literal

from training.problems import problem_named
from training.records import ProblemName


def part_of(problem: ProblemName, part: Literal["gate", "outputs", "sections"]) -> Any:
    """A module of the problem's folder.

    Raises :class:`training.errors.DataError` for an unknown problem.
    """
    return import_module(f"{__name__}.{problem_named(problem).name}.{part}")
