"""Pictures of a classification: the confusion matrix, and images that the candidate classified wrongly."""

from pathlib import Path

import numpy as np

from tasks.problems.classification.tables import MATRIX_UP_TO, confusion_cells
from tasks.report_page.drawing import ACCENT, BAD, INK, SOFT, new_figure, picture_grid, save, set_title
from tasks.report_page.inputs import ReportInputs
from tasks.report_page.wording import percent
from training.problems.probabilities import ClassificationScore


def confusion_matrix(score: ClassificationScore, path: Path) -> Path:
    """Draw the confusion matrix: a row per true class, a column per predicted class.

    A cell's colour depth is the square root of its share of the row.
    """
    names = [class_score.name for class_score in score.classes]
    side = min(12.0, max(4.5, 0.55 * len(names) + 1.5))
    figure = new_figure(side, side)
    axes = figure.subplots()
    cells = confusion_cells(score)
    axes.imshow(_colours([[(cell.right, cell.depth) for cell in row] for row in cells]))
    for down, row in enumerate(cells if len(names) <= MATRIX_UP_TO else ()):
        for across, cell in enumerate(row):
            if cell.count:
                axes.text(across, down, str(cell.count), ha="center", va="center", color=INK, fontsize=9)
    every = max(1, len(names) // 30)
    shown = range(0, len(names), every)
    labels = [names[at] if len(names[at]) <= 18 else f"{names[at][:17]}…" for at in shown]
    axes.set_xticks(shown, labels, rotation=90 if max(map(len, labels)) > 3 else 0, parse_math=False)
    axes.set_yticks(shown, labels, parse_math=False)
    axes.set_xlabel("taken for", color=SOFT)
    axes.set_ylabel("truth", color=SOFT)
    set_title(axes, f"Confusion, accuracy {percent(score.accuracy)}")
    return save(figure, path)


def mistake_grid(inputs: ReportInputs, path: Path) -> Path:
    """Draw the candidate's mistakes on images, each with its true and its predicted class."""
    mistakes = inputs.evaluation.mistakes
    names = [mistake.truth for mistake in mistakes]
    guesses = [f"{mistake.predicted} {percent(mistake.probability, 0)}" for mistake in mistakes]
    return picture_grid(inputs.example_pictures, names, guesses, [False] * len(mistakes), path)


def _colours(cells: list[list[tuple[bool, float]]]) -> np.ndarray:
    """Colours of (rows, columns, 3): from white to green for correct cells, from white to red for wrong cells."""
    from matplotlib.colors import to_rgb

    ends = {True: np.array(to_rgb(ACCENT)), False: np.array(to_rgb(BAD))}
    return np.array([[1 - 0.6 * depth * (1 - ends[good]) for good, depth in row] for row in cells])
