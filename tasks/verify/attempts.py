"""I5 and I6: how many steps were computed twice, and how long training took to recover from a failure."""

import math
import statistics
from collections.abc import Iterator
from itertools import pairwise

from tasks.verify.evidence import Evidence
from tasks.verify.finding import NoEvidence, Outcome, few, judged
from training.attempts.history import Attempt, Failure
from training.trainers.boosting.rounds import ROUNDS_PER_BLOCK

_BEAT_S = 1.0  # seconds between two heartbeats, and about the time to commit a checkpoint
_ON_PURPOSE = ("stopped on request", "training was stopped")


def on_record(run: Evidence) -> Outcome:
    """Attempt numbers increase, each attempt began at a step that training had reached, and the fence agrees."""
    attempts = run.attempts
    if not attempts:
        trained = (run.paths.model / "trained.json").is_file()
        raise NoEvidence("no attempt is on record", ok=False if trained else None)
    numbers = [(attempt.number, attempt.group) for attempt in attempts]
    problems = [f"attempt {b[0]}.{b[1]} follows {a[0]}.{a[1]}" for a, b in pairwise(numbers) if b <= a]
    problems += [
        f"attempt {_name(attempt)} began at step {attempt.first_step}, but only step {attempt.reached} was reached"
        for attempt in attempts
        if not 0 <= attempt.first_step <= attempt.reached
    ]
    # With an object store, earlier attempts may be on the record of another machine, which this machine lacks.
    is_whole = run.plan.settings.storage.url is None or attempts[0].number == 1
    if is_whole and attempts[0].first_step:
        problems.append(f"the first attempt on record began at step {attempts[0].first_step}")
    fence = run.paths.fence.read_text(encoding="utf-8") if run.paths.fence.is_file() else "none"
    if not _is_behind(max(numbers), fence):
        problems.append(f"attempt {max(numbers)[0]}.{max(numbers)[1]} began, but the fence is {fence}")
    return judged(problems, f"{few([_name(attempt) for attempt in attempts])}; fence {fence}")


def computed_twice(run: Evidence) -> Outcome:
    """No attempt repeated more steps than lie between two checkpoints.

    The step that an attempt reached is known to within one second. So the steps of one second, or one more interval
    if that is less, are tolerated; this also covers a checkpoint that was being written when the attempt died.
    """
    if not run.attempts:
        raise NoEvidence("no attempt is on record")
    if len(run.attempts) == 1:
        return Outcome(True, "one attempt, which computed each step once")
    interval, why = _interval(run)
    slack = min(interval, math.ceil(_BEAT_S * _steps_per_s(run)) or 1)
    again = {_name(attempt): attempt.reached - attempt.first_step for attempt in run.attempts[1:]}
    problems = [
        f"attempt {name} repeated {steps} steps" for name, steps in again.items() if steps > interval + slack
    ]
    listed = few([f"{name}: {steps}" for name, steps in again.items()])
    rule = f"at most {interval} steps between two checkpoints ({why}), and {slack} for the last second"
    return judged([*problems, rule] if problems else [], f"repeated steps: {listed}; {rule}")


def recovered(run: Evidence, bound_s: float | None) -> Outcome:
    """After each failure, training was ready to resume within the time bound."""
    taken, unrecorded = dict(_recoveries(run)), _without_record(run)
    unknown = (
        f"; the end of attempt {few(unrecorded)} is not on record, because its driver ended too"
        if unrecorded
        else ""
    )
    if not taken:
        return Outcome(True, f"no failure on record after which training resumed{unknown}")
    listed = few([f"{seconds:.1f} s after attempt {number}" for number, seconds in taken.items()]) + unknown
    if bound_s is None:
        raise NoEvidence(f"{listed}; --recovery-bound sets a limit for this time")
    return Outcome(max(taken.values()) <= bound_s, f"{listed}; {bound_s:g} s allowed")


def _recoveries(run: Evidence) -> Iterator[tuple[int, float]]:
    """Each failed attempt's number and the seconds until the next attempt was ready.

    Attempts that were stopped on purpose are left out.
    """
    for failure in run.failures:
        following = [attempt for attempt in run.attempts if attempt.number > failure.number]
        if following and not _is_on_purpose(failure):
            yield failure.number, following[0].ready - failure.at


def _without_record(run: Evidence) -> list[int]:
    """Attempts that a later attempt followed although no failure of theirs is on record."""
    failed = {failure.number for failure in run.failures}
    newest = run.attempts[-1].number if run.attempts else 0
    return sorted({attempt.number for attempt in run.attempts} - failed - {newest})


def _is_on_purpose(failure: Failure) -> bool:
    return any(words in failure.error for words in _ON_PURPOSE)


def _interval(run: Evidence) -> tuple[int, str]:
    """The largest possible number of steps between two checkpoints, and the rule that limits it."""
    settings = run.plan.settings
    if run.steps.thinned:  # checkpoints hold whole blocks of rounds, and none is due at the end of an epoch
        block, limits = ROUNDS_PER_BLOCK, [(run.steps.total, "the end of training")]
    else:
        block, limits = 1, [(run.steps.per_epoch, "the end of an epoch")]
    if run.steps.thinned or settings.data.feed != "stream":  # a network resumes only at the start of an epoch
        if (every := settings.checkpoint.every_steps) is not None:
            limits.append((every, f"checkpoint.every_steps {every}"))
        if speed := _steps_per_s(run):
            every_s = settings.checkpoint.every_s
            steps = math.ceil(speed * every_s) + 1  # a save request takes effect a little later
            limits.append((steps, f"checkpoint.every_s {every_s:g} at {speed:.1f} steps/s"))
    steps, why = min(limits)
    return -(-steps // block) * block, why


def _steps_per_s(run: Evidence) -> float:
    """Median speed between two metric points; 0 when there are fewer than two points."""
    points = [point for point in run.points if "train/loss" in point.values]
    speeds = [
        (after.step - before.step) / (after.at - before.at)
        for before, after in pairwise(points)
        if after.at > before.at
    ]
    return statistics.median(speeds) if speeds else 0.0


def _is_behind(newest: tuple[int, int], fence: str) -> bool:
    """Whether the fence is at attempt `newest` or later; an attempt that died at its start is not on record."""
    number, _, group = fence.partition(" ")[0].partition(".")
    return number.isdigit() and group.isdigit() and newest <= (int(number), int(group))


def _name(attempt: Attempt) -> str:
    return f"{attempt.number}.{attempt.group}"
