"""Pictures of a regression: predicted against true numbers, the distribution of the errors, and the worst images."""

from pathlib import Path
from typing import TYPE_CHECKING

from tasks.problems.regression import plots
from tasks.report_page.drawing import ACCENT, LINE, SOFT, new_figure, picture_grid, save, set_title
from tasks.report_page.inputs import Predicted, ReportInputs
from tasks.report_page.wording import number

if TYPE_CHECKING:
    from matplotlib.colors import Colormap


def predicted_against_true(predicted: Predicted, target: str, path: Path) -> Path:
    """Draw predicted against true numbers: each row as a point, or counts of rows in hexagons if there are many."""
    figure = new_figure(6, 5.4)
    axes = figure.subplots()
    truth, guess = predicted.truth, predicted.candidate
    if len(truth) <= plots.POINTS_UP_TO:
        axes.scatter(truth, guess, s=9, color=ACCENT, alpha=0.6, linewidths=0)
    else:
        axes.hexbin(truth, guess, gridsize=40, mincnt=1, cmap=_shades(), norm="log")
    low, high = plots.joint_range(predicted)
    axes.plot((low, high), (low, high), color=SOFT, linewidth=0.8, linestyle=(0, (2, 3)))
    axes.set_xlabel("true", color=SOFT)
    axes.set_ylabel("predicted", color=SOFT)
    set_title(axes, f"{target}, predicted against true")
    return save(figure, path)


def error_histogram(predicted: Predicted, target: str, path: Path) -> Path:
    """Draw the distribution of the errors; errors beyond the central 99 % are in the first and the last bin."""
    figure = new_figure(6, 3.8)
    axes = figure.subplots()
    counts, edges = plots.error_counts(predicted)
    axes.stairs(counts, edges, fill=True, color=ACCENT, alpha=0.7)
    axes.axvline(0, color=SOFT, linewidth=0.8, linestyle=(0, (2, 3)))
    axes.set_xlabel("predicted minus true", color=SOFT)
    axes.grid(axis="y", color=LINE)
    set_title(axes, f"{target}, errors on {len(predicted.truth):,} rows")
    return save(figure, path)


def error_grid(inputs: ReportInputs, path: Path) -> Path:
    """Draw the images with the largest errors, each with its true and its predicted number."""
    errors = inputs.evaluation.largest_errors
    truths, guesses = [number(error.truth) for error in errors], [number(error.predicted) for error in errors]
    return picture_grid(inputs.example_pictures, truths, guesses, [False] * len(errors), path)


def _shades() -> "Colormap":
    """Colours for counts, from a light to the full accent colour."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("evergreen", ["#d5e6dc", ACCENT])
