"""Parallel-coordinates picture of a search: an axis for each searched setting and the loss, a line for each trial."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.report_page.drawing import ACCENT, INK, LINE, SOFT, new_figure, save, set_title
from training.search.records import Search
from training.search.space import parse_space, text_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TICKS = 4
_AXIS_INCHES = 1.9


def parallel_coordinates(search: Search, path: Path) -> Path:
    """Draw all trials with a score; the winner's line is thick, lines of trials that did not finish are dotted."""
    results = {result.number: result for result in search.results if result.validation_loss is not None}
    shown = [trial for trial in search.trials if trial.number in results]
    space = parse_space(search.space)
    columns = [
        _Column(name.rpartition(".")[2], [trial.values[name] for trial in shown], domain.is_logarithmic)
        for name, domain in space.items()
    ]
    if search.generations > 1:
        columns.insert(0, _Column("generation", [trial.generation for trial in shown], logarithmic=False))
    losses = [results[trial.number].validation_loss for trial in shown]
    columns.append(_Column("validation loss", losses, logarithmic=False))
    figure = new_figure(max(5.0, _AXIS_INCHES * len(columns)), 4.2)
    axes = figure.subplots()
    set_title(axes, f"{len(shown)} trials of {search.recipe}")
    axes.set_axis_off()
    for at, column in enumerate(columns):
        _axis(axes, at, column)
    winner = search.winner
    for row, trial in enumerate(shown):
        won = winner is not None and trial.number == winner.number
        axes.plot(
            range(len(columns)),
            [column.heights[row] for column in columns],
            "-" if results[trial.number].status == "finished" else ":",
            color=ACCENT if won else SOFT,
            alpha=1.0 if won else 0.55,
            linewidth=2.5 if won else 1.0,
            zorder=3 if won else 2,
        )
    return save(figure, path)


class _Column:
    """One axis: the height, from 0 to 1, of each trial's value, and labelled positions."""

    def __init__(self, title: str, values: Sequence[Any], logarithmic: bool):
        self.title = title
        is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        height = _of_numbers(values, logarithmic) if is_number else _of_names(values)
        self.heights = [height(value) for value in values]
        labels = {text_of(value) if not is_number else f"{value:.3g}": height(value) for value in values}
        self.ticks = _spread(labels) if is_number else labels


def _of_numbers(values: Sequence[float], logarithmic: bool) -> Callable[[float], float]:
    scale: Callable[[float], float] = math.log if logarithmic else float
    low, high = scale(min(values)), scale(max(values))
    return lambda value: (scale(value) - low) / (high - low) if high > low else 0.5


def _of_names(values: Sequence[Any]) -> Callable[[Any], float]:
    names = sorted({text_of(value) for value in values})
    return lambda value: names.index(text_of(value)) / max(1, len(names) - 1)


def _spread(labels: dict[str, float]) -> dict[str, float]:
    """Select labels that are far enough apart to be read: the lowest, the highest and some between."""
    selected: dict[str, float] = {}
    ordered = sorted(labels.items(), key=lambda item: item[1])
    for text, height in [ordered[0], ordered[-1], *ordered]:
        if all(abs(height - other) >= 1 / _TICKS for other in selected.values()):
            selected[text] = height
    return selected


def _axis(axes: "Axes", at: int, column: _Column) -> None:
    axes.plot([at, at], [0, 1], color=LINE, linewidth=1.5, zorder=1)
    axes.text(at, -0.09, column.title, ha="center", color=INK, fontsize=9, parse_math=False)
    for text, height in column.ticks.items():
        axes.text(at + 0.03, height, text, va="center", color=SOFT, fontsize=8, zorder=4, parse_math=False)
