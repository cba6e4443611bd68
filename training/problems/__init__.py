"""Learning problems such as classification and regression. :func:`problem_named` finds a problem by its name."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from training.errors import DataError
from training.seams import PROBLEMS, ProblemName, part_named

if TYPE_CHECKING:
    from training.problems.base import Problem
    from training.records import Score


def problem_named(name: ProblemName) -> "Problem":
    """The problem with this name, as recipes and manifests of datasets store it.

    Raises :class:`DataError` for a name that is not in :data:`training.seams.PROBLEMS`.
    """
    if name not in PROBLEMS:
        raise DataError(
            f"problem {name!r} is not known to this version of Evergreen, which has {', '.join(PROBLEMS)}; use the "
            "version that wrote this name"
        )
    return cast("Problem", part_named(PROBLEMS, name)())


def problem_at(name: ProblemName, own: float | None, champion: float | None = None) -> "Problem":
    """The problem with this name, for the scores of a model with the threshold `own`; None: it has none.

    `champion` is the threshold of the champion that it is compared with. See :mod:`training.problems.thresholds`.
    """
    if own is None and champion is None:
        return problem_named(name)
    from training.problems.classification import WithThresholds

    return WithThresholds(own_threshold=own, champion_threshold=champion)


def problem_of(score: "Score") -> "Problem":
    """The problem that these scores belong to."""
    return problem_named(score.problem)


def problem_with_metric(values: Mapping[str, Any]) -> "Problem":
    """The first problem whose metric is among the names of `values`. Raises ValueError if there is none."""
    for problem in map(problem_named, PROBLEMS):
        if problem.metric in values:
            return problem
    raise ValueError(f"no metric of a problem is among {', '.join(values)}")
