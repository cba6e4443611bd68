"""A row from its first run to its lines: prepared once, sides in alternation (A B B A ...), compared pair by pair."""

import shutil
import statistics as medians
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.results import Line
from benchmarks.harness.row import Claim, Place, Row, Series, Size, check_agreement
from benchmarks.harness.side import PREPARE, Measured, run_side
from benchmarks.harness.statistics import control, estimate, is_met, is_void

_UNVOID_FACTOR = 2  # a restless machine gets so many times the pairs to become quiet


class Run(NamedTuple):
    """One run of a side, in the order of time."""

    side: str
    measured: Measured


def measure(row: Row, work: Path, size: Size, pairs: int | None) -> list[Line]:
    """All claims of a row. Raises :class:`SideError` or :class:`DisagreementError`."""
    shared = Path(tempfile.mkdtemp(prefix=f"{row.id.lower()}-", dir=work))
    data = work / "data"
    data.mkdir(exist_ok=True)
    place = Place(data, shared, shared, size)
    wanted = pairs or (row.pairs if size == "full" else min(2, row.pairs))
    try:
        _run(row, PREPARE, place)
        if row.warm_up and size == "full":
            for side in row.sides:
                _run(row, side, place)
        runs: list[Run] = []
        for number in range(_UNVOID_FACTOR * wanted):
            judged = [claim for claim in row.claims if claim.goal is not None]
            if number >= wanted and not any(is_void(control_of(runs, claim)) for claim in judged):
                break
            runs += _round(row, place, backwards=number % 2 == 1)
        return [_line(runs, claim, size) for claim in row.claims]
    finally:
        shutil.rmtree(shared, ignore_errors=True)


def _round(row: Row, place: Place, backwards: bool) -> list[Run]:
    """Each side once; the sides must have done the same."""
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


def series(runs: Sequence[Run], side: str, name: str) -> list[float]:
    """All values of a side in the order of time."""
    found: list[float] = []
    for run in runs:
        if run.side == side:
            value: Series = run.measured.outcome.values[name]
            found += value if isinstance(value, list) else [value]
    return found


def control_of(runs: Sequence[Run], claim: Claim) -> float | None:
    """How far apart two runs of the same side are that followed each other, over both sides of the claim.

    Where a run measures several times, how far apart those are that followed each other in it.
    """
    if claim.again is not None:
        same = zip(series(runs, claim.a, claim.of), series(runs, claim.a, claim.again), strict=True)
        return control(list(same))
    keys = {claim.b: claim.key_b, claim.a: claim.of}
    if claim.a == claim.b:
        return None
    near: list[tuple[float, float]] = []
    for first, second in pairwise([*runs, None]):
        if first is None or first.side not in keys:
            continue
        value = first.measured.outcome.values[keys[first.side]]
        if isinstance(value, list):
            near += zip(value[::2], value[1::2], strict=False)
        elif second is not None and first.side == second.side:
            after = second.measured.outcome.values[keys[first.side]]
            near += [] if isinstance(after, list) else [(value, after)]
    return control(near)


def _line(runs: Sequence[Run], claim: Claim, size: Size) -> Line:
    ours, theirs = series(runs, claim.a, claim.of), series(runs, claim.b, claim.key_b)
    compared = [claim.compare(a, b) for a, b in zip(ours, theirs, strict=True)]
    found = estimate(compared, claim.geometric)
    of_control = control_of(runs, claim)
    judged = claim.goal is not None and not is_void(of_control)
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
        control=of_control,
        cpu_s=_cost(runs, claim, "cpu_s"),
        peak_mb=_cost(runs, claim, "peak_mb"),
        note="; ".join(filter(None, (claim.note, _remark(len(compared), of_control, size)))),
    )


def _cost(runs: Sequence[Run], claim: Claim, name: str) -> dict[str, float]:
    return {
        role: medians.median(getattr(run.measured, name) for run in runs if run.side == side)
        for role, side in (("a", claim.a), ("b", claim.b))
    }


def _remark(pairs: int, of_control: float | None, size: Size) -> str:
    if is_void(of_control):
        return "void: two runs of the same side differed by more than 3 %"
    if size != "full":
        return f"{size} run: too short to judge by"
    return "one pair: no interval" if pairs == 1 else ""
