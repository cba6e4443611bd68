"""Geometry of the page's charts. The templates draw it as SVG and CSS, which support a dark and a light theme."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasks.report_page.measure import Measure
from tasks.report_page.wording import compact
from tasks.run_words import TrainerWords
from training.records import EpochMetrics, Evaluation

WIDTH, HEIGHT = 360.0, 228.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 44.0, 350.0, 26.0, 196.0
# If the highest loss is more than this many times the lowest, the low end is unreadable on a linear scale.
_LOG_FROM_RATIO = 20.0


@dataclass(frozen=True)
class Scale:
    """Maps values in [low, high] to positions in [start, stop]."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Position of `value`."""
        low, high, value = (
            map(math.log, (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        )
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.stop - self.start), 2)


@dataclass(frozen=True)
class Tick:
    """A labelled position on an axis."""

    at: float
    text: str


@dataclass(frozen=True)
class Line:
    """One curve: an SVG path, and its points if they are few enough to be distinguished."""

    kind: str
    path: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Chart:
    """One panel of learning curves, in units of its view box."""

    title: str
    description: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    mark: tuple[float, float] | None
    mark_text: str
    width: float = WIDTH
    height: float = HEIGHT
    left: float = _LEFT
    right: float = _RIGHT
    top: float = _TOP
    bottom: float = _BOTTOM


@dataclass(frozen=True)
class _Axis:
    """What a panel of learning curves shows, and how its values are written in text and at ticks."""

    title: str
    words: TrainerWords
    spell: Callable[[float], str]
    tick: Callable[[float], str]
    may_be_log: bool


def learning_curves(
    history: Sequence[EpochMetrics], selected_epoch: int, measure: Measure, words: TrainerWords
) -> tuple[Chart, ...]:
    """Charts of the loss and of the problem's metric by epoch; empty without a finished epoch."""
    if not history:
        return ()
    loss = [(row.epoch, row.train_loss, row.validation_loss) for row in history]
    scores = [(row.epoch, row.train_score, row.validation_score) for row in history]
    return (
        _chart(_Axis("Loss", words, _short, _short, may_be_log=True), loss, selected_epoch),
        _chart(
            _Axis(measure.title, words, measure.spell, measure.tick, may_be_log=not measure.is_share),
            scores,
            selected_epoch,
        ),
    )


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else compact(value)


def _chart(axis: _Axis, rows: Sequence[tuple[int, float, float]], selected_epoch: int) -> Chart:
    """A panel of (epoch, train, validation) rows; values that are not finite are left out."""
    values = [value for _, *pair in rows for value in pair if math.isfinite(value)] or [0.0, 1.0]
    y_scale, y_values = _value_axis(min(values), max(values), logs=axis.may_be_log)
    first, last = rows[0][0], rows[-1][0]
    x_scale = Scale(first, last, _LEFT + 8, _RIGHT - 8)
    lines = tuple(
        _line(kind, [(x_scale(row[0]), y_scale(row[at])) for row in rows if math.isfinite(row[at])])
        for kind, at in (("train", 1), ("validation", 2))
    )
    kept = next((row for row in rows if row[0] == selected_epoch and math.isfinite(row[2])), None)
    return Chart(
        title=axis.title + (" (logarithmic scale)" if y_scale.log else ""),
        description=_describe(axis, rows, selected_epoch),
        x_ticks=tuple(Tick(x_scale(at), str(at)) for at in _epoch_ticks(first, last)),
        y_ticks=tuple(Tick(y_scale(at), axis.tick(at)) for at in y_values),
        lines=lines,
        mark=(x_scale(kept[0]), y_scale(kept[2])) if kept else None,
        mark_text=f"{axis.words.epoch} {kept[0]} kept: {axis.spell(kept[2])}" if kept else "",
    )


def _describe(axis: _Axis, rows: Sequence[tuple[int, float, float]], selected_epoch: int) -> str:
    """Text alternative of the panel, for readers who can't see it."""
    (first, train, validation), (last, train_end, validation_end) = rows[0], rows[-1]
    spell, epoch = axis.spell, axis.words.epoch
    return (
        f"{axis.title} by {epoch}. Training from {spell(train)} in {epoch} {first} to {spell(train_end)} in {epoch} "
        f"{last}; validation from {spell(validation)} to {spell(validation_end)}. "
        f"The {axis.words.kept.format(selected_epoch)} were kept."
    )


def _line(kind: str, points: list[tuple[float, float]]) -> Line:
    path = " ".join(f"{'L' if at else 'M'}{x:g} {y:g}" for at, (x, y) in enumerate(points))
    return Line(kind, path, tuple(points) if len(points) <= 30 else ())


def _value_axis(low: float, high: float, logs: bool) -> tuple[Scale, list[float]]:
    """A scale that covers [low, high], and round values on it for ticks."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    if logs and low > 0 and high / low > _LOG_FROM_RATIO:
        subs = (1.0,) if high / low > 1000 else (1.0, 3.0)
        ticks = [float(at) for at in LogLocator(subs=subs).tick_values(low, high)]
        return Scale(low / 1.1, high * 1.1, _BOTTOM, _TOP, log=True), [
            at for at in ticks if low / 1.1 <= at <= high * 1.1
        ]
    room = 0.06 * (high - low) or 0.05
    ticks = [float(at) for at in MaxNLocator(nbins=5, steps=[1, 2, 5, 10]).tick_values(low, high)]
    return Scale(low - room, high + room, _BOTTOM, _TOP), [
        at for at in ticks if low - room <= at <= high + room
    ]


def _epoch_ticks(first: int, last: int) -> list[int]:
    from matplotlib.ticker import MaxNLocator

    if first == last:
        return [first]
    ticks = MaxNLocator(nbins=6, integer=True).tick_values(first, last)
    return [int(at) for at in ticks if first <= at <= last]


@dataclass(frozen=True)
class Interval:
    """One model's metric with its confidence interval; positions in percent of the axis."""

    name: str
    kind: str
    low: float
    at: float
    high: float
    text: str


@dataclass(frozen=True)
class IntervalChart:
    """The metric of each model, side by side on one axis."""

    rows: tuple[Interval, ...]
    ticks: tuple[Tick, ...]


def intervals(evaluation: Evaluation, version: str, measure: Measure) -> IntervalChart:
    """Chart of the metric of candidate and champion, each with its confidence interval."""
    from matplotlib.ticker import MaxNLocator

    scores = [(f"Version {version}, candidate", "candidate", evaluation.candidate)]
    if evaluation.champion:
        scores.append((f"Version {evaluation.champion_version}, champion", "champion", evaluation.champion))
    low, high = min(score.low for *_, score in scores), max(score.high for *_, score in scores)
    room = 0.08 * (high - low) or 0.01
    scale = Scale(low - room, high + room, 0.0, 100.0)
    ticks = [float(at) for at in MaxNLocator(nbins=5, steps=[1, 2, 5, 10]).tick_values(low, high)]
    return IntervalChart(
        rows=tuple(
            Interval(
                name,
                kind,
                scale(score.low),
                scale(measure.of(score)),
                scale(score.high),
                measure.spell(measure.of(score)),
            )
            for name, kind, score in scores
        ),
        ticks=tuple(Tick(scale(at), measure.tick(at)) for at in ticks if low - room <= at <= high + room),
    )
