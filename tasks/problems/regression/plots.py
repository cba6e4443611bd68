"""Geometry of a regression's plots: predicted against true, errors by prediction, and the distribution of errors.

The templates draw the plots as SVG: up to :data:`POINTS_UP_TO` rows as points, more rows as counts in a grid.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.report_page.charts import Scale, Tick
from tasks.report_page.inputs import Predicted
from tasks.report_page.wording import compact, number

POINTS_UP_TO = 400
_CELLS = 36  # along each side of the grid
_BINS = 40
_TAIL = 0.005  # share of the errors on each side that are counted in the first and in the last bin

WIDTH, HEIGHT = 360.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 350.0, 14.0, 258.0

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """A rectangle; `depth`, from 0 to 1, is its depth of colour, 1 for the largest count."""

    x: float
    y: float
    width: float
    height: float
    depth: float


@dataclass(frozen=True)
class Plot:
    """One plot in units of its SVG view box; `guide` is the line on which the rows of a perfect model lie."""

    title: str
    description: str
    x_name: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    points: tuple[tuple[float, float], ...]
    cells: tuple[Cell, ...]
    guide: tuple[float, float, float, float]
    width: float = WIDTH
    height: float = HEIGHT
    left: float = _LEFT
    right: float = _RIGHT
    top: float = _TOP
    bottom: float = _BOTTOM


def finite(predicted: Predicted) -> tuple[Values, Values]:
    """True and predicted numbers of the rows on which both are finite."""
    kept = np.isfinite(predicted.truth) & np.isfinite(predicted.candidate)
    return predicted.truth[kept], predicted.candidate[kept]


def joint_range(predicted: Predicted) -> tuple[float, float]:
    """Least and largest of the true and predicted numbers; (0, 1) without rows."""
    both = np.concatenate(finite(predicted))
    return (float(both.min()), float(both.max())) if len(both) else (0.0, 1.0)


def error_counts(predicted: Predicted) -> tuple[NDArray[np.int64], Values]:
    """Numbers of rows by error (predicted minus true), and the edges of the bins, symmetric about 0.

    The outermost bins also count the errors beyond the central 99 %.
    """
    truth, guess = finite(predicted)
    errors = guess - truth
    reach = float(np.quantile(np.abs(errors), 1 - 2 * _TAIL)) if len(errors) else 0.0
    reach = reach or float(np.abs(errors).max(initial=0.0)) or 1.0
    counts, edges = np.histogram(np.clip(errors, -reach, reach), bins=_BINS, range=(-reach, reach))
    return counts, edges


def plots(predicted: Predicted, target: str) -> tuple[Plot, Plot]:
    """Predicted numbers against true numbers, and errors against predicted numbers."""
    truth, guess = finite(predicted)
    low, high = joint_range(predicted)
    correlation = (
        float(np.corrcoef(truth, guess)[0, 1]) if len(truth) > 1 and truth.std() and guess.std() else math.nan
    )
    related = f"; their correlation is {correlation:.3f}" if math.isfinite(correlation) else ""
    against_true = _plot(
        "Predicted against true",
        f"{target}: predicted numbers against the true numbers of {len(truth):,} test rows{related}.",
        ("true", truth, (low, high)),
        (guess, (low, high)),
        (low, low, high, high),
    )
    errors = guess - truth
    reach = float(np.abs(errors).max(initial=0.0)) or 1.0
    sides = (float(guess.min()), float(guess.max())) if len(guess) else (0.0, 1.0)
    against_predicted = _plot(
        "Errors by prediction",
        f"{target}: predicted minus true against the predicted number; the largest error is {number(reach)}.",
        ("predicted", guess, sides),
        (errors, (-reach, reach)),
        (sides[0], 0.0, sides[1], 0.0),
    )
    return against_true, against_predicted


def histogram(predicted: Predicted, target: str) -> Plot:
    """The distribution of the errors as bars."""
    counts, edges = error_counts(predicted)
    x_scale = Scale(float(edges[0]), float(edges[-1]), _LEFT, _RIGHT)
    most = max(1, int(counts.max(initial=0)))
    y_scale = Scale(0, most, _BOTTOM, _TOP)
    bars = tuple(
        Cell(
            x_scale(float(edges[at])),
            y_scale(int(count)),
            round(x_scale(float(edges[at + 1])) - x_scale(float(edges[at])), 2),
            round(_BOTTOM - y_scale(int(count)), 2),
            1.0,
        )
        for at, count in enumerate(counts)
        if count
    )
    middle = float(np.median(np.subtract(*finite(predicted)[::-1]))) if counts.sum() else 0.0
    return Plot(
        title="Distribution of the errors",
        description=(
            f"{target}: rows by predicted minus true. The median is {number(middle)}; the outermost bars also count "
            f"the errors beyond {number(float(edges[-1]))}."
        ),
        x_name="predicted minus true",
        x_ticks=_ticks(x_scale),
        y_ticks=_ticks(y_scale),
        points=(),
        cells=bars,
        guide=(x_scale(0), _BOTTOM, x_scale(0), _TOP),
    )


def _plot(
    title: str,
    description: str,
    x: tuple[str, Values, tuple[float, float]],
    y: tuple[Values, tuple[float, float]],
    guide: tuple[float, float, float, float],
) -> Plot:
    """Rows at (x, y); `x` is (name of the axis, values, range), `y` is (values, range)."""
    x_name, x_values, x_range = x
    y_values, y_range = y
    x_scale = Scale(*_padded(*x_range), _LEFT, _RIGHT)
    y_scale = Scale(*_padded(*y_range), _BOTTOM, _TOP)
    many = len(x_values) > POINTS_UP_TO
    return Plot(
        title=title,
        description=description,
        x_name=x_name,
        x_ticks=_ticks(x_scale),
        y_ticks=_ticks(y_scale),
        points=() if many else _points(x_values, y_values, x_scale, y_scale),
        cells=_cells(x_values, y_values, x_scale, y_scale) if many else (),
        guide=(x_scale(guide[0]), y_scale(guide[1]), x_scale(guide[2]), y_scale(guide[3])),
    )


def _points(x: Values, y: Values, x_scale: Scale, y_scale: Scale) -> tuple[tuple[float, float], ...]:
    return tuple((x_scale(across), y_scale(up)) for across, up in zip(x.tolist(), y.tolist(), strict=True))


def _cells(x: Values, y: Values, x_scale: Scale, y_scale: Scale) -> tuple[Cell, ...]:
    """Counts in a grid; the depth is logarithmic, so that cells with a single row are visible."""
    counts, across, up = np.histogram2d(
        x, y, bins=_CELLS, range=((x_scale.low, x_scale.high), (y_scale.low, y_scale.high))
    )
    most = math.log1p(float(counts.max(initial=0.0))) or 1.0
    return tuple(
        Cell(
            x_scale(float(across[column])),
            y_scale(float(up[row + 1])),
            round((_RIGHT - _LEFT) / _CELLS, 2),
            round((_BOTTOM - _TOP) / _CELLS, 2),
            round(0.15 + 0.85 * math.log1p(float(counts[column, row])) / most, 2),
        )
        for column, row in np.argwhere(counts > 0).tolist()
    )


def _padded(low: float, high: float) -> tuple[float, float]:
    room = 0.03 * (high - low) or 0.05 * abs(high) or 0.5
    return low - room, high + room


def _ticks(scale: Scale) -> tuple[Tick, ...]:
    from matplotlib.ticker import MaxNLocator

    values: Sequence[float] = MaxNLocator(nbins=5, steps=[1, 2, 5, 10]).tick_values(scale.low, scale.high)
    return tuple(Tick(scale(at), compact(at)) for at in map(float, values) if scale.low <= at <= scale.high)
