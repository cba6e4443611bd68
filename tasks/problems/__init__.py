"""The parts of the pipeline's tasks that depend on the problem: a folder for each problem, with the same modules.

`gate.py` compares the rows of two models (:class:`tasks.gate.outcomes.GateOfProblem`), `outputs.py` defines what
`predict` writes (:class:`tasks.inference.outputs.OutputsOfProblem`), and `sections.py` with its template is the
problem's part of the report (:class:`tasks.report_page.sections.Sections`).

A problem that inherits :class:`training.problems.mean_errors.MeanErrorMethods` needs none of these modules:
`mean_errors/` has a part for each, made from the problem's methods.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from training.problems import problem_named
from training.problems.mean_errors import MeanErrorMethods
from training.records import ProblemName

_SHARED = "mean_errors"


def part_of(problem: ProblemName, part: Literal["gate", "outputs", "sections"]) -> Any:
    """A part of a problem: the module of its folder or, for a problem without such a module, the shared part.

    Raises :class:`training.errors.DataError` for an unknown problem.
    """
    if not _is_shared(problem, part):
        return import_module(f"{__name__}.{problem}.{part}")
    return import_module(f"{__name__}.{_SHARED}.{part}").part_for(problem_named(problem))


def template_of(problem: ProblemName) -> str:
    """Path in this package of the template of the problem's sections in the report."""
    return f"{_SHARED if _is_shared(problem, 'sections') else problem}/sections.html.j2"


def _is_shared(problem: ProblemName, part: str) -> bool:
    """Whether a problem has no module of its own for a part, and can use the shared one."""
    folder = f"{__name__}.{problem}"
    if not isinstance(problem_named(problem), MeanErrorMethods):
        return False
    return find_spec(folder) is None or find_spec(f"{folder}.{part}") is None
