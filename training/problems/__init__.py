"""Learning problems: classification and regression. :func:`problem_named` finds a problem by its name."""

from importlib import import_module
from typing import cast

from training.problems.base import Problem
from training.records import ProblemName, RegressionScore, Score

_MODULES: dict[ProblemName, str] = {
    "classification": "training.problems.classification:Classification",
    "regression": "training.problems.regression:Regression",
}


def problem_named(name: ProblemName) -> Problem:
    """The problem with this name, as recipes and manifests of datasets store it."""
    module, _, kind = _MODULES[name].partition(":")
    return cast(Problem, getattr(import_module(module), kind)())


def problem_of(score: Score | RegressionScore) -> Problem:
    """The problem that these scores belong to; a recorded evaluation names its problem by the kind of its scores."""
    return problem_named("regression" if isinstance(score, RegressionScore) else "classification")
