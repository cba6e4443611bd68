"""Pictures of a run for trackers and artifacts, as PNG files with a white background.

They are drawn through matplotlib's object interface without pyplot, whose global state is not safe with threads.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from tasks.report_page import regression_plots as regression
from tasks.report_page.inputs import Picture, Predicted, ReportInputs
from tasks.report_page.measure import Measure
from tasks.report_page.pictures import to_image
from tasks.report_page.tables import MATRIX_UP_TO, confusion_cells
from tasks.report_page.wording import percent
from tasks.run_words import TrainerWords
from training.records import Score, TrainedModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

_INK, _SOFT, _LINE, _ACCENT, _BAD = "#17201b", "#55615a", "#e1e5df", "#1b6b47", "#b0271d"
_DPI = 144
_GRID_COLUMNS = 8
_GRID_LIMIT = 64
_CELL, _PICTURE, _CAPTION = 1.4, 1.3, 0.35  # inches


def learning_curves(trained: TrainedModel, path: Path, measure: Measure, words: TrainerWords) -> Path:
    """Draw loss and metric by epoch for training and validation, and mark the epoch whose model was kept."""
    figure = _figure(10, 3.8)
    epochs = [row.epoch for row in trained.history]
    panels = (("loss", "Loss"), ("score", measure.title))
    for axes, (name, title) in zip(figure.subplots(1, 2), panels, strict=True):
        marker = "o" if len(epochs) <= 30 else ""
        for kind, colour, style in (("train", _SOFT, ":"), ("validation", _ACCENT, "-")):
            values = [getattr(row, f"{kind}_{name}") for row in trained.history]
            axes.plot(epochs, values, style, color=colour, marker=marker, markersize=3.5, label=kind)
        axes.axvline(trained.selected_epoch, color=_ACCENT, linewidth=0.8, linestyle=(0, (2, 3)))
        axes.set_xlabel(f"{words.epoch} (kept: {trained.selected_epoch})", color=_SOFT)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(axis="y", color=_LINE)
        _title(axes, title)
        axes.legend(frameon=False, labelcolor=_INK)
    return _save(figure, path)


def confusion_matrix(score: Score, path: Path) -> Path:
    """Draw the confusion matrix: a row per true class, a column per predicted class.

    A cell's colour depth is the square root of its share of the row.
    """
    names = [one.name for one in score.classes]
    side = min(12.0, max(4.5, 0.55 * len(names) + 1.5))
    figure = _figure(side, side)
    axes = figure.subplots()
    cells = confusion_cells(score)
    axes.imshow(_colours([[(cell.right, cell.depth) for cell in row] for row in cells]))
    for down, row in enumerate(cells if len(names) <= MATRIX_UP_TO else ()):
        for across, cell in enumerate(row):
            if cell.count:
                axes.text(across, down, str(cell.count), ha="center", va="center", color=_INK, fontsize=9)
    every = max(1, len(names) // 30)
    shown = range(0, len(names), every)
    labels = [names[at] if len(names[at]) <= 18 else f"{names[at][:17]}…" for at in shown]
    axes.set_xticks(shown, labels, rotation=90 if max(map(len, labels)) > 3 else 0, parse_math=False)
    axes.set_yticks(shown, labels, parse_math=False)
    axes.set_xlabel("taken for", color=_SOFT)
    axes.set_ylabel("truth", color=_SOFT)
    _title(axes, f"Confusion, accuracy {percent(score.accuracy)}")
    return _save(figure, path)


def mistake_grid(inputs: ReportInputs, path: Path) -> Path:
    """Draw the candidate's mistakes on images, each with its true and its predicted class."""
    mistakes = inputs.evaluation.mistakes
    names = [one.truth for one in mistakes]
    guesses = [f"{one.predicted} {percent(one.probability, 0)}" for one in mistakes]
    return _grid(inputs.mistakes, names, guesses, [False] * len(mistakes), path)


def predicted_against_true(predicted: Predicted, target: str, path: Path) -> Path:
    """Draw predicted against true numbers: each row as a point, or counts of rows if there are many."""
    figure = _figure(6, 5.4)
    axes = figure.subplots()
    truth, guess = predicted.truth, predicted.candidate
    if len(truth) <= regression.POINTS_UP_TO:
        axes.scatter(truth, guess, s=9, color=_ACCENT, alpha=0.6, linewidths=0)
    else:
        axes.hexbin(truth, guess, gridsize=40, mincnt=1, cmap=_shades(), norm="log")
    low, high = regression.joint_range(predicted)
    axes.plot((low, high), (low, high), color=_SOFT, linewidth=0.8, linestyle=(0, (2, 3)))
    axes.set_xlabel("true", color=_SOFT)
    axes.set_ylabel("predicted", color=_SOFT)
    _title(axes, f"{target}, predicted against true")
    return _save(figure, path)


def error_histogram(predicted: Predicted, target: str, path: Path) -> Path:
    """Draw the distribution of the errors; errors beyond the central 99 % are in the first and the last bin."""
    figure = _figure(6, 3.8)
    axes = figure.subplots()
    counts, edges = regression.error_counts(predicted)
    axes.stairs(counts, edges, fill=True, color=_ACCENT, alpha=0.7)
    axes.axvline(0, color=_SOFT, linewidth=0.8, linestyle=(0, (2, 3)))
    axes.set_xlabel("predicted minus true", color=_SOFT)
    axes.grid(axis="y", color=_LINE)
    _title(axes, f"{target}, errors on {len(predicted.truth):,} rows")
    return _save(figure, path)


def _shades() -> "Colormap":
    """From a light to the full accent colour, for counts."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("evergreen", ["#d5e6dc", _ACCENT])


def prediction_grid(
    images: Sequence[Picture], truths: Sequence[str], predictions: Sequence[str], path: Path
) -> Path:
    """Draw a grid of up to 64 uint8 images (channels, height, width), each with its prediction, in red if wrong."""
    right = [truth == predicted for truth, predicted in zip(truths, predictions, strict=True)]
    return _grid(images, truths, predictions, right, path)


def _grid(
    images: Sequence[Picture],
    truths: Sequence[str],
    predictions: Sequence[str],
    right: Sequence[bool],
    path: Path,
) -> Path:
    shown = list(zip(images, truths, predictions, right, strict=True))[:_GRID_LIMIT]
    columns = max(1, min(_GRID_COLUMNS, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    wide, high = _CELL * columns, (_CELL + _CAPTION) * rows
    figure = _figure(wide, high, layout=None)
    # All pictures share these axes, with inches as units: separate axes for each picture take a second to lay out.
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, wide)
    axes.set_ylim(high, 0)
    for number, (pixels, truth, predicted, good) in enumerate(shown):
        image = np.asarray(to_image(pixels))
        across, down = (
            side * _PICTURE / max(image.shape[:2]) / 2 for side in (image.shape[1], image.shape[0])
        )
        x = _CELL * (number % columns + 0.5)
        y = (_CELL + _CAPTION) * (number // columns) + _CAPTION + _CELL / 2
        place = (x - across, x + across, y + down, y - down)
        axes.imshow(image, "gray", vmin=0, vmax=255, interpolation="nearest", aspect="auto", extent=place)
        text = predicted if good else f"{truth}\n→ {predicted}"
        lines = [line if len(line) <= 16 else f"{line[:15]}…" for line in text.split("\n")[:2]]
        colour = _ACCENT if good else _BAD
        above = y - down - 0.04
        axes.text(
            x, above, "\n".join(lines), size=8, color=colour, ha="center", va="bottom", parse_math=False
        )
    return _save(figure, path)


def _figure(width: float, height: float, layout: Literal["constrained"] | None = "constrained") -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=_DPI, layout=layout, facecolor="white")


def _title(axes: "Axes", text: str) -> None:
    axes.set_title(text, loc="left", color=_INK, fontweight="bold", fontsize=11, parse_math=False)
    axes.tick_params(colors=_SOFT, labelsize=9, length=0)
    axes.spines[:].set_visible(False)


def _colours(cells: list[list[tuple[bool, float]]]) -> np.ndarray:
    """Colours of (rows, columns, 3): from white to green for correct cells, from white to red for wrong cells."""
    from matplotlib.colors import to_rgb

    ends = {True: np.array(to_rgb(_ACCENT)), False: np.array(to_rgb(_BAD))}
    return np.array([[1 - 0.6 * depth * (1 - ends[good]) for good, depth in row] for row in cells])


def _save(figure: "Figure", path: Path) -> Path:
    figure.savefig(path, format="png")
    return path
