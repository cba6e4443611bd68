"""Rules about columns of numbers and dates."""

import math
from collections.abc import Iterator

from training.data.profiles.distances import kolmogorov, log_noise, noise
from training.data.profiles.pair import Pair
from training.data.profiles.wording import figure, moment, percent
from training.profile_records import SHARES, SIZE_SHARES, Change, ColumnProfile

_FEW = 20  # values below which a median says too little
# A factor by which all quantiles changed alike is held from a fifth of the limit on: no season does that.
_EXACT = 5.0
_ALIKE = 0.1  # how much the logarithms of such factors may differ
_MOSTLY, _HARDLY = 0.5, 0.1  # of a column that becomes mostly 0, and had hardly any
# Chance at which the other values of a constant column, or the newest dates, are absent from so few rows.
_NEVER = 1e-4
# Quantiles of which at least the stated share of the values differs from one of both, if they differ.
_VARIED = ((0.25, 0.75, 0.25), (0.1, 0.9, 0.1), (0.05, 0.95, 0.05))
# Dates that all end before this share of the champion's dates are those of an old export.
_NEWEST = 0.95


def number_changes(pair: Pair) -> Iterator[Change]:
    """Changes of a column of numbers: constant, mostly 0, of another scale, or of another shape."""
    for rule in (_constant, _zeros, _scale, _shape):
        if (change := rule(pair)) is not None:
            yield change
            return


def date_changes(pair: Pair) -> Iterator[Change]:
    """Changes of a column of dates, which may move on: constant, or without the newest dates."""
    if (change := _constant(pair)) is not None:
        yield change
        return
    ends = [share for share in SHARES if share <= _NEWEST and share**pair.current_values <= _NEVER]
    if not ends:
        return
    end, now = pair.reference.quantile(ends[-1]), pair.current.quantiles[-1]
    if now < end:
        before, newest = moment(pair.reference.quantiles[-1], True), moment(now, True)
        yield pair.change(
            "time",
            (before, newest),
            now,
            end,
            "hold",
            f"ends on {newest}, and reached {before}: is this an old export?",
        )


def _constant(pair: Pair) -> Change | None:
    before, now = pair.reference, pair.current
    if now.quantiles[0] != now.quantiles[-1]:
        return None
    share = next((s for low, high, s in _VARIED if before.quantile(low) != before.quantile(high)), 0.0)
    if (1 - share) ** pair.current_values > _NEVER:
        return None
    spell = _date if now.kind == "date" else figure
    value, (least, most) = spell(now.quantiles[0]), map(spell, (before.quantiles[0], before.quantiles[-1]))
    return pair.change(
        "constant",
        (f"{least} to {most}", value),
        1.0,
        1.0,
        "hold",
        f"is {value} in all rows, and had values from {least} to {most}",
    )


def _zeros(pair: Pair) -> Change | None:
    before, now = pair.reference.zeros, pair.current.zeros
    if (
        not before < _HARDLY
        or not now > _MOSTLY
        or now - before <= noise(pair.reference_values, pair.current_values)
    ):
        return None
    return pair.change(
        "zeros",
        (f"{percent(before)} are 0", f"{percent(now)} are 0"),
        now,
        _MOSTLY,
        "hold",
        f"is 0 in {percent(now)} of the rows, and was in {percent(before)}: are missing values written as 0?",
    )


def _scale(pair: Pair) -> Change | None:
    """Another unit: the median of the absolute values other than 0 moved by a large factor.

    This median follows the scale of numbers around 0, whose own median and sign say nothing, and of numbers that are
    mostly 0.
    """
    before, now = pair.reference, pair.current
    rows = (pair.reference_values * (1 - before.zeros), pair.current_values * (1 - now.zeros))
    if min(rows) < _FEW:
        return None
    logs = [math.log(size) - math.log(other) for size, other in zip(now.sizes, before.sizes, strict=True)]
    middle = logs[SIZE_SHARES.index(0.5)]
    varied = min(before.sizes[-1] / before.sizes[0], now.sizes[-1] / now.sizes[0]) > 1
    alike = varied and max(logs) - min(logs) <= _ALIKE
    limit = pair.limit("scale")
    limit = max(1.0, limit / _EXACT) if alike else limit
    if abs(middle) < math.log(limit) - _ALIKE / 2 or abs(middle) <= log_noise(before.sizes, *rows):
        return None
    factor = math.exp(middle)
    values = tuple(figure(_middle(column)) for column in (before, now))
    times = f"{figure(factor)} times as large" if factor >= 1 else f"{figure(1 / factor)} times smaller"
    return pair.change(
        "scale",
        (values[0], values[1]),
        factor,
        limit,
        "hold",
        f"is {times}: typically {values[1]}, and was {values[0]}; did its unit change?",
    )


def _middle(column: ColumnProfile) -> float:
    """The median, or where it is 0 or near it the median of the absolute values."""
    median, size = column.quantile(0.5), column.sizes[SIZE_SHARES.index(0.5)]
    return median if abs(median) > size / 2 else size


def _shape(pair: Pair) -> Change | None:
    limit = pair.limit("shape")
    distance = kolmogorov(pair.reference, pair.current)
    if distance <= max(limit, noise(pair.reference_values, pair.current_values)):
        return None
    spans = [
        f"{figure(column.quantile(0.25))} to {figure(column.quantile(0.75))}"
        for column in (pair.reference, pair.current)
    ]
    medians = [figure(column.quantile(0.5)) for column in (pair.reference, pair.current)]
    return pair.change(
        "shape",
        (f"{medians[0]} ({spans[0]})", f"{medians[1]} ({spans[1]})"),
        distance,
        limit,
        "tell",
        f"has other values: half of them from {spans[1]}, and they were from {spans[0]}",
    )


def _date(days: float) -> str:
    return moment(days, True)
