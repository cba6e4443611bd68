"""Measure one row: prepare once, run the sides in alternation (A B B A ...), and compare them pair by pair."""

import shutil
import statistics as medians
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.results import Line
from benchmarks.harness.row import Claim, Place, Row, Series, Size, check_agreement
from benchmarks.harness.side import PREPARE, Measured, run_side
from benchmarks.harness.statistics import MOST_SPREAD, average, estimate, is_met, is_void, spread

_UNVOID_FACTOR = 2  # while runs of one side differ too much, measure up to this many times the wanted pairs,
_UNVOID_S = 180.0  # but begin no further pair after this many seconds


class Run(NamedTuple):
    """One run of a side."""

    side: str
    measured: Measured


def measure(row: Row, work: Path, size: Size, pairs: int | None, hooks: bool = True) -> list[Line]:
    """Measure a row, with or without hooks into Ray, and return a line for each claim.

    Raises :class:`SideError` or :class:`DisagreementError`.
    """
    shared = Path(tempfile.mkdtemp(prefix=f"{row.id.lower()}-", dir=work))
    data = work / "data"
    data.mkdir(exist_ok=True)
    place = Place(data, shared, shared, size, hooks)
    wanted = pairs or (row.pairs if size == "full" else min(2, row.pairs))
    try:
        _run(row, PREPARE, place)
        if row.warm_up and size == "full":
            for side in row.sides:
                _run(row, side, place)
        runs: list[Run] = []
        for number in range(wanted):
            runs += _round(row, place, backwards=number % 2 == 1)
        patience = time.monotonic() + _UNVOID_S
        for number in range(wanted, _UNVOID_FACTOR * wanted):
            if not _restless(runs, row) or time.monotonic() > patience:
                break
            runs += _round(row, place, backwards=number % 2 == 1)
        return [_line(runs, claim, size).model_copy(update={"hooks": hooks}) for claim in row.claims]
    finally:
        shutil.rmtree(shared, ignore_errors=True)


def _restless(runs: Sequence[Run], row: Row) -> bool:
    """Whether a claim with a goal would be void with the runs so far."""
    return any(is_void(spread_of(runs, claim)) for claim in row.claims if claim.goal is not None)


def _round(row: Row, place: Place, backwards: bool) -> list[Run]:
    """Run each side once. Raises :class:`DisagreementError` if the sides did not do the same work."""
    order = list(row.sides)[::-1] if backwards else list(row.sides)
    runs = [Run(side, _run(row, side, place)) for side in order]
    check_agreement(row, {run.side: run.measured.outcome.did for run in runs})
    return runs


def _run(row: Row, side: str, place: Place) -> Measured:
    own = Path(tempfile.mkdtemp(prefix="x", dir=place.shared.parent))
    try:
        return run_side(row, side, replace(place, own=own))
    finally:
        shutil.rmtree(own, ignore_errors=True)


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


def _line(runs: Sequence[Run], claim: Claim, size: Size) -> Line:
    ours = series(runs, claim.a, claim.of, claim.geometric)
    theirs = series(runs, claim.b, claim.key_b, claim.geometric)
    compared = [claim.compare(a, b) for a, b in zip(ours, theirs, strict=True)]
    found = estimate(compared, claim.geometric)
    of_side = spread_of(runs, claim)
    judged = claim.goal is not None and not is_void(of_side)
    met = is_met(found, claim.goal, claim.at_least) if judged and claim.goal is not None else None
    return Line(
        id=claim.id,
        title=claim.title,
        ratio=found.mean,
        low=found.low,
        high=found.high,
        goal=claim.goal,
        at_least=claim.at_least,
        met=met,
        a=medians.median(ours),
        b=medians.median(theirs),
        unit=claim.unit,
        pairs=len(compared),
        spread=of_side,
        cpu_s=_cost(runs, claim, "cpu_s"),
        peak_mb=_cost(runs, claim, "peak_mb"),
        note="; ".join(filter(None, (claim.note, _remark(len(compared), of_side, size)))),
    )


def _cost(runs: Sequence[Run], claim: Claim, name: str) -> dict[str, float]:
    return {
        role: medians.median(getattr(run.measured, name) for run in runs if run.side == side)
        for role, side in (("a", claim.a), ("b", claim.b))
    }


def _remark(pairs: int, of_side: float | None, size: Size) -> str:
    if is_void(of_side):
        return f"void: runs of the same side have a standard deviation above {MOST_SPREAD:.0%}"
    if size != "full":
        return f"{size} run: too short for a judgement"
    return "one pair: no interval" if pairs == 1 else ""
