"""I3: the run's file and MLflow have each metric at each step exactly once, with the same values."""

import math
from collections import Counter
from itertools import pairwise

from tasks.verify.contract import changed_on_the_way, check_same_contract, unless_permitted
from tasks.verify.evidence import Evidence
from tasks.verify.finding import NoEvidence, Outcome, judged
from training.attempts.metrics import AT_EPOCH_ENDS, AT_INTERVALS, SPEEDS
from training.problems import problem_named

_SAME = 1e-6

At = tuple[str, int]  # a metric's name and a step


def in_file(run: Evidence) -> Outcome:
    """The run's file has each point that the steps imply exactly once."""
    counts = Counter((name, point.step) for point in run.points for name in point.values)
    return judged(_misplaced(run, counts), _counted(run, counts))


def in_mlflow(run: Evidence) -> Outcome:
    """MLflow has each point that the steps imply exactly once."""
    history = run.store.history
    final = run.release.metrics if run.is_finished else {}  # checked by `final_numbers`
    counts = Counter(
        (name, point.step) for name, points in history.items() if name not in final for point in points
    )
    return judged(_misplaced(run, counts), _counted(run, counts))


def same_values(run: Evidence) -> Outcome:
    """MLflow's values equal the file's. Speeds are left out: MLflow may have those of an older attempt."""
    theirs = {
        (name, point.step): float(point.value)
        for name, points in run.store.history.items()
        for point in points
    }
    ours = {at: value for at, value in _by_model(run).items() if at in theirs}
    problems = _different(ours, theirs, "MLflow")
    if problems and changed_on_the_way(run):
        raise NoEvidence(f"{problems[0]}; its attempts computed under different conditions")
    return judged(problems, f"{len(ours)} values")


def final_numbers(run: Evidence) -> Outcome:
    """The release's metrics are in MLflow, each once; a later verdict adds changed values as newer points."""
    problems = []
    for name, value in run.release.metrics.items():
        there = sorted(run.store.history.get(name, []), key=lambda point: point.timestamp)
        if not there:
            problems.append(f"{name} is not in MLflow")
        elif any(earlier.value == later.value for earlier, later in pairwise(there)):
            problems.append(f"{name} is in MLflow {len(there)} times")
        elif not _is_circumstantial(name) and not is_close(value, float(there[-1].value)):
            problems.append(f"{name} is {there[-1].value} in MLflow and {value} in release.json")
    return judged(problems, f"{len(run.release.metrics)} numbers")


def same_as(run: Evidence, other: Evidence) -> Outcome:
    """The other run has the same points and final numbers, if the runs are comparable; speeds are left out."""
    check_same_contract(run, other)
    ours, theirs = _by_model(run), _by_model(other)
    alone = sorted(ours.keys() ^ theirs.keys(), key=_by_step)
    if alone:
        return judged([f"{name} at step {step} is in only one of the two runs" for name, step in alone], "")
    problems = _different(ours, theirs, other.paths.root.name)
    numbers = _final_by_model(run).keys() & _final_by_model(other).keys()
    mine, others = _final_by_model(run), _final_by_model(other)
    problems += [
        f"{name}: {mine[name]} and {others[name]}"
        for name in numbers
        if not is_close(mine[name], others[name])
    ]
    outcome = judged(problems, f"{len(ours)} points and {len(numbers)} final numbers")
    return unless_permitted(outcome, run, other)


def _misplaced(run: Evidence, counts: "Counter[At]") -> list[str]:
    """Points that are missing, duplicate, or at a step without points.

    In an unfinished run, points of the last step and of later steps may be missing.
    """
    planned = _planned(run, {name for name, _ in counts})
    last = max((step for _, step in counts), default=0)
    due = planned if run.is_finished else {at for at in planned if at[1] < last}
    names = {name for name, _ in planned}
    strange = {at for at in counts.keys() - planned if at[0] in names}
    return [
        *(f"{name} is missing at step {step}" for name, step in sorted(due - counts.keys(), key=_by_step)),
        *(
            f"{name} occurs {times} times at step {step}"
            for (name, step), times in counts.items()
            if times > 1
        ),
        *(
            f"{name} has a point at step {step}, where there should be none"
            for name, step in sorted(strange, key=_by_step)
        ),
    ]


def _planned(run: Evidence, recorded_names: set[str]) -> set[At]:
    """The points of a whole training, for the metrics that every run has and for others with the same prefixes."""
    metric = problem_named(run.plan.recipe.problem).metric
    at_intervals, at_epoch_ends = (
        {name.format(metric=metric) for name in names} for names in (AT_INTERVALS, AT_EPOCH_ENDS)
    )
    often = {
        *at_intervals,
        *(recorded_names & SPEEDS or SPEEDS),
        *(name for name in recorded_names if name.startswith(("train/", "speed/"))),
    }
    seldom = {*at_epoch_ends, *(name for name in recorded_names if name.startswith("validation/"))}
    steps = run.steps
    return {(name, step) for name in often for step in steps.metric_points} | {
        (name, step) for name in seldom for step in steps.validation_points
    }


def _counted(run: Evidence, counts: "Counter[At]") -> str:
    names = {name for name, _ in counts}
    return f"{len(counts)} points of {len(names)} metrics, up to step {run.steps.total}"


def _by_model(run: Evidence) -> dict[At, float]:
    """Points whose values depend on the model alone."""
    clocked = ("speed/", "system/")
    return {
        (name, point.step): value
        for point in run.points
        for name, value in point.values.items()
        if not name.startswith(clocked)
    }


def _final_by_model(run: Evidence) -> dict[str, float]:
    numbers = run.release.metrics if run.is_finished else {}
    return {name: value for name, value in numbers.items() if not _is_circumstantial(name)}


def _is_circumstantial(name: str) -> bool:
    """Whether a number of a release depends on more than its model: on the machine, or on the champion."""
    return name == "latency_ms" or name.startswith("champion_")


def _different(ours: dict[At, float], theirs: dict[At, float], where: str) -> list[str]:
    """One sentence about the values that differ, in a list; an empty list when none differ."""
    different = [at for at in ours.keys() & theirs.keys() if ours[at] != theirs[at]]
    if not different:
        return []
    name, step = first = min(different, key=_by_step)
    return [
        f"{len(different)} values differ, the first is {name} at step {step}: {ours[first]}, and {theirs[first]} "
        f"in {where}"
    ]


def is_close(value: float, other: float) -> bool:
    """Whether two numbers agree up to rounding: their forward passes may run on different numbers of threads."""
    return math.isclose(value, other, rel_tol=_SAME, abs_tol=_SAME)


def _by_step(at: At) -> tuple[int, str]:
    return at[1], at[0]
