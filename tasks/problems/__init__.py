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
from training.records import ProblemName

_SHARED = "mean_errors"


def part_of(problem: ProblemName, part: Literal["gate", "outputs", "sections"]) -> Any:
    """A part of a problem: the module of its folder or, without such a module, the shared part.

    Raises :class:`training.errors.DataError` for an unknown problem.
    """
    known = problem_named(problem)
    if _has(known.name, part):
        return import_module(f"{__name__}.{known.name}.{part}")
    return import_module(f"{__name__}.{_SHARED}.{part}").part_for(known)


def template_of(problem: ProblemName) -> str:
    """Path in this package of the template of the problem's sections in the report."""
    return f"{problem if _has(problem, 'sections') else _SHARED}/sections.html.j2"


def _has(problem: ProblemName, part: str) -> bool:
    folder = f"{__name__}.{problem}"
    return find_spec(folder) is not None and find_spec(f"{folder}.{part}") is not None
