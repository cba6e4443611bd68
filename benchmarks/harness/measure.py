"""Measure one row: prepare once, run the sides in alternation (A B B A ...), and compare them pair by pair."""

import shutil
import statistics as medians
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.results import Line, versions_of
from benchmarks.harness.row import (
    Claim,
    DisagreementError,
    Row,
    Series,
    Size,
    Workspace,
    check_agreement,
    check_scores,
)
from benchmarks.harness.side import PREPARE, Measured, SideError, run_side
from benchmarks.harness.statistics import MOST_SPREAD, average, estimate, is_met, is_void, spread

_UNVOID_FACTOR = 2  # while runs of one side differ too much, measure up to this many times the wanted pairs,
_UNVOID_S = 180.0  # but begin no further pair after this many seconds
# A side that fails this often ends the row, because a failure may take the row's whole time limit.
_MOST_FAILED = 2


class Run(NamedTuple):
    """One run of a side that ended without an error, in a round in which each side runs once."""

    side: str
    measured: Measured
    round: int = 0


class Failure(NamedTuple):
    """One run of a side that ended with an error."""

    side: str
    reason: str


@dataclass
class Runs:
    """All runs of a row so far."""

    ended: list[Run] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def failed(self) -> dict[str, int]:
        """How many runs of each side failed."""
        return dict(Counter(failure.side for failure in self.failures))

    def hopeless(self) -> bool:
        """Whether a side fails too often to go on."""
        return any(count >= _MOST_FAILED for count in self.failed().values())


def measure(row: Row, work: Path, size: Size, pairs: int | None, hooks: bool = True) -> list[Line]:
    """Measure a row, with or without hooks into Ray, and return a line for each claim.

    A run that fails is counted in the lines, and the pairs without such a run are compared. If the sides' models differ
    too much, the goals are missed. Raises :class:`SideError` if the preparation fails, and :class:`DisagreementError`
    if the sides did not do the same work.
    """
    shared = Path(tempfile.mkdtemp(prefix=f"{row.id.lower()}-", dir=work))
    data = work / "data"
    data.mkdir(exist_ok=True)
    workspace = Workspace(data, shared, shared, size, hooks)
    wanted = pairs or (row.pairs if size == "full" else min(2, row.pairs))
    try:
        _run(row, PREPARE, workspace)
        runs = _all_rounds(row, workspace, wanted)
    finally:
        shutil.rmtree(shared, ignore_errors=True)
    lines = [line_of(row, runs, claim, size).model_copy(update={"hooks": hooks}) for claim in row.claims]
    if size != "full":
        return lines
    try:
        check_scores(row, _mean_scores(row, runs.ended))
    except DisagreementError as error:
        return [_disagreed(line, str(error)) for line in lines]
    return lines


def _disagreed(line: Line, why: str) -> Line:
    """The line of sides whose models differ too much: the numbers stay, and the goal is missed."""
    return line.model_copy(
        update={
            "failed_runs": line.failed_runs | {"agreement": 1},
            "met": None if line.goal is None else False,
            "note": "; ".join(filter(None, (line.note, why))),
        }
    )


def unmeasured(row: Row, claim: Claim, note: str) -> Line:
    """A line without numbers, which says why."""
    return Line(
        id=claim.id,
        title=claim.title,
        goal=claim.goal,
        at_least=claim.at_least,
        unit=claim.unit,
        note=note,
        versions=versions_of(row.packages),
    )


def _all_rounds(row: Row, workspace: Workspace, wanted: int) -> Runs:
    """The wanted rounds, and further rounds while runs of one side differ too much."""
    runs = Runs()
    if row.warm_up and workspace.size == "full":
        _round(row, workspace, list(row.sides), runs)
        runs.ended.clear()  # a failed warm-up stays on record, its numbers do not count
    patience = 0.0
    for number in range(_UNVOID_FACTOR * wanted):
        if number == wanted:
            patience = time.monotonic() + _UNVOID_S
        enough = number >= wanted and (not _restless(runs.ended, row) or time.monotonic() > patience)
        if enough or runs.hopeless():
            break
        order = list(row.sides)[::-1] if number % 2 else list(row.sides)
        _round(row, workspace, order, runs, number)
    return runs


def _restless(runs: Sequence[Run], row: Row) -> bool:
    """Whether a claim with a goal would be void with the runs so far."""
    return any(is_void(spread_of(runs, claim)) for claim in row.claims if claim.goal is not None)


def _round(row: Row, workspace: Workspace, order: Sequence[str], runs: Runs, number: int = 0) -> None:
    """Run each side once. Raises :class:`DisagreementError` if the sides that ended did not do the same work."""
    ended = []
    for side in order:
        try:
            ended.append(Run(side, _run(row, side, workspace), number))
        except SideError as error:
            print(error, file=sys.stderr, flush=True)
            runs.failures.append(Failure(side, str(error).splitlines()[0].rstrip(":")))
    check_agreement(row, {run.side: run.measured.outcome.did for run in ended})
    runs.ended += ended


def _run(row: Row, side: str, workspace: Workspace) -> Measured:
    own = Path(tempfile.mkdtemp(prefix="x", dir=workspace.shared.parent))
    try:
        return run_side(row, side, replace(workspace, own=own))
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _mean_scores(row: Row, runs: Sequence[Run]) -> Mapping[str, Mapping[str, float]]:
    """The mean of each score over the runs of each side: a single training of a few epochs varies much."""
    sides = dict.fromkeys(run.side for run in runs)
    return {
        name: {
            side: medians.mean(float(run.measured.outcome.did[name]) for run in runs if run.side == side)
            for side in sides
        }
        for name in row.scores
    }


def series(runs: Sequence[Run], side: str, name: str, geometric: bool) -> list[float]:
    """One value for each run of a side, in chronological order."""
    return [_value(run, name, geometric) for run in runs if run.side == side]


def _value(run: Run, name: str, geometric: bool) -> float:
    value: Series = run.measured.outcome.values[name]
    return average(value, geometric) if isinstance(value, list) else value


def spread_of(runs: Sequence[Run], claim: Claim) -> float | None:
    """Spread (:func:`statistics.spread`) between consecutive runs of the same side, over both sides of the claim."""
    keys = {claim.b: claim.key_b, claim.a: claim.of}
    near = [
        tuple(_value(run, keys[run.side], claim.geometric) for run in (first, second))
        for first, second in pairwise(run for run in runs if run.side in keys)
        if first.side == second.side
    ]
    return spread([(first, second) for first, second in near])


def line_of(row: Row, runs: Runs, claim: Claim, size: Size) -> Line:
    """Compare the pairs of a claim; a claim with a failed run of Evergreen is missed."""
    line = _compared(row, _paired(runs.ended, claim), claim, size)
    failed = {side: count for side, count in runs.failed().items() if side in (claim.a, claim.b)}
    if not failed:
        return line
    # The first of each side.
    reasons = dict(reversed([(failure.side, failure.reason) for failure in runs.failures]))
    notes = [
        f"failed runs of side {side}: {count}; the first: {reasons[side]}" for side, count in failed.items()
    ]
    lost = claim.goal is not None and any(side not in row.others for side in failed)
    return line.model_copy(
        update={
            "failed_runs": failed,
            "met": False if lost else line.met,
            "note": "; ".join(filter(None, (line.note, *notes))),
        }
    )


def _paired(runs: Sequence[Run], claim: Claim) -> list[Run]:
    """The runs of the claim's sides in the rounds in which both sides ended without an error."""
    sides = {claim.a, claim.b}
    ended: dict[int, set[str]] = {}
    for run in runs:
        ended.setdefault(run.round, set()).add(run.side)
    return [run for run in runs if run.side in sides and sides <= ended[run.round]]


def _compared(row: Row, runs: Sequence[Run], claim: Claim, size: Size) -> Line:
    ours = series(runs, claim.a, claim.of, claim.geometric)
    theirs = series(runs, claim.b, claim.key_b, claim.geometric)
    if not ours:
        return unmeasured(row, claim, claim.note)
    compared = [claim.compare(a, b) for a, b in zip(ours, theirs, strict=True)]
    ratio = estimate(compared, claim.geometric)
    of_side = spread_of(runs, claim)
    judged = claim.goal is not None and not is_void(of_side)
    met = is_met(ratio, claim.goal, claim.at_least) if judged and claim.goal is not None else None
    return unmeasured(row, claim, _note(runs, claim, of_side, size)).model_copy(
        update={
            "ratio": ratio.mean,
            "low": ratio.low,
            "high": ratio.high,
            "met": met,
            "a": medians.median(ours),
            "b": medians.median(theirs),
            "pairs": len(compared),
            "spread": of_side,
            "cpu_s": _cost(runs, claim, "cpu_s"),
            "peak_mb": _cost(runs, claim, "peak_mb"),
        }
    )


def _cost(runs: Sequence[Run], claim: Claim, name: str) -> dict[str, float]:
    return {
        role: medians.median(getattr(run.measured, name) for run in runs if run.side == side)
        for role, side in (("a", claim.a), ("b", claim.b))
    }


def _note(runs: Sequence[Run], claim: Claim, of_side: float | None, size: Size) -> str:
    mine = [run for run in runs if run.side == claim.a]
    counted = ""
    if claim.counted:
        total = sum(_value(run, claim.counted, geometric=False) for run in mine)
        counted = f"{total:.0f} {claim.counted} in {len(mine)} runs"
    return "; ".join(filter(None, (claim.note, counted, _remark(len(mine), of_side, size))))


def _remark(pairs: int, of_side: float | None, size: Size) -> str:
    if is_void(of_side):
        return f"void: runs of the same side have a standard deviation above {MOST_SPREAD:.0%}"
    if size != "full":
        return f"{size} run: too short for a judgement"
    return "one pair: no interval" if pairs == 1 else ""
