"""Rows of the page's tables, computed from the records; the templates only lay them out."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tasks.report_page.wording import NOTHING, Tone, number, percent, points, relative, tone_of
from training.records import Evaluation, Goodput

_REST = "not_accounted_for"


@dataclass(frozen=True)
class ScoreRow:
    """One measure of candidate and champion, formatted for display."""

    name: str
    note: str
    candidate: str
    champion: str
    change: str
    unit: str
    tone: Tone


@dataclass(frozen=True)
class Measured:
    """A measure to show: its name, the field of the score record, a note, and how it is written and compared.

    With `of_candidate`, the champion's value is not shown, since it was measured in another way.
    """

    name: str
    field: str
    note: str
    share: bool
    higher_is_better: bool | None  # None: neither
    of_candidate: bool = False


def score_rows(evaluation: Evaluation, measures: Sequence[Measured]) -> tuple[ScoreRow, ...]:
    """`measures` and the recipe's metrics of both models on the same rows."""
    candidate, champion = evaluation.candidate, evaluation.champion

    def row(measure: Measured) -> ScoreRow:
        value = float(getattr(candidate, measure.field))
        spell = percent if measure.share else number
        if champion is None or measure.of_candidate:
            return ScoreRow(measure.name, measure.note, spell(value), NOTHING, NOTHING, "", "plain")
        before = float(getattr(champion, measure.field))
        change = value - before
        better = measure.higher_is_better
        return ScoreRow(
            measure.name,
            measure.note,
            spell(value),
            spell(before),
            points(change) if measure.share else relative(change),
            "points" if measure.share else "",
            "plain" if better is None else tone_of(change, better),
        )

    return (*map(row, measures), *_recipe_metric_rows(evaluation))


def _recipe_metric_rows(evaluation: Evaluation) -> Iterator[ScoreRow]:
    theirs = {} if evaluation.champion is None else evaluation.champion.recipe_metrics
    for name, value in evaluation.candidate.recipe_metrics.items():
        before = theirs.get(name)
        champion, change = (
            (NOTHING, NOTHING) if before is None else (number(before), relative(value - before))
        )
        yield ScoreRow(name, "metric of the recipe", number(value), champion, change, "", "plain")


def speed_measures(row: str, speed: str) -> tuple[Measured, ...]:
    """Latency and speed, where `row` is the noun for one row and `speed` the field of the rows a second.

    The trained candidate and the registered champion are different programs, so their speeds are not compared.
    """
    return (
        Measured("Latency, ms", "latency_ms", f"median for one {row}, one a batch", False, False, True),
        Measured(f"{row.capitalize()}s per second", speed, "in large batches", False, True, True),
    )


@dataclass(frozen=True)
class Part:
    """A part of the wall time, rounded so that the parts shown add up to the total shown."""

    name: str
    seconds: str
    share: str
    width: float
    colour: str


def goodput_parts(goodput: Goodput, colours: dict[str, str] | None = None) -> tuple[Part, ...]:
    """The parts of the wall time, in order. Time that no part accounts for is shown as a separate part.

    `colours` are the :func:`part_colours` of all bars on a page.
    """
    colours = colours or part_colours(goodput)
    parts = claimed(goodput)
    decimals = _decimals(goodput)
    seconds = round_together(list(parts.values()), round(sum(parts.values()) * 10**decimals))
    shares = round_together(list(parts.values()), 1000)
    return tuple(
        Part(
            name.replace("_", " "),
            f"{seconds[at] / 10**decimals:,.{decimals}f}",
            percent(shares[at] / 1000, 1),
            max(parts[name], 0.0),
            colours[name],
        )
        for at, name in enumerate(parts)
    )


def total_seconds(goodput: Goodput) -> str:
    """The total to which the parts of :func:`goodput_parts` add up."""
    decimals = _decimals(goodput)
    return f"{round(sum(claimed(goodput).values()) * 10**decimals) / 10**decimals:,.{decimals}f}"


def claimed(goodput: Goodput) -> dict[str, float]:
    """Seconds by part; time that no part accounts for (beyond rounding) is a separate part."""
    rest = goodput.total_s - sum(goodput.parts.values())
    return goodput.parts | ({_REST: rest} if rest > 0.001 * goodput.total_s else {})


def _decimals(goodput: Goodput) -> int:
    """Decimals of seconds to show: 1, but 0 for a run of hours, in which tenths of a second are irrelevant."""
    return 0 if goodput.total_s >= 10_000 else 1


def round_together(values: Sequence[float], total: int) -> list[int]:
    """`values`, scaled to sum to `total` and rounded to integers with the same sum (largest remainder method)."""
    whole = sum(values)
    if whole <= 0:
        return [0 for _ in values]
    exact = [value * total / whole for value in values]
    floors = [math.floor(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda at: floors[at] - exact[at])
    for at in by_remainder[: total - sum(floors)]:
        floors[at] += 1
    return floors


def part_colours(*goodputs: Goodput) -> dict[str, str]:
    """A CSS class for each part, the same in every bar.

    Useful time has the accent colour, lost time is red, unaccounted time grey; the other parts get seven colours in
    turn.
    """
    colours: dict[str, str] = {}
    turn = 0
    for name in (name for goodput in goodputs for name in claimed(goodput)):
        if name in colours:
            continue
        if name == "compute":
            colours[name] = "compute"
        elif "lost" in name or "fail" in name:
            colours[name] = "lost"
        elif name == _REST:
            colours[name] = "rest"
        else:
            colours[name] = f"part-{turn % 7}"
            turn += 1
    return colours
