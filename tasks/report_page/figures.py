"""Pictures of a run for trackers and artifacts, for every problem."""

from collections.abc import Sequence
from pathlib import Path

from tasks.report_page.drawing import ACCENT, INK, LINE, SOFT, new_figure, picture_grid, save, set_title
from tasks.report_page.inputs import Picture
from tasks.report_page.measure import Measure
from tasks.run_words import TrainerWords
from training.records import TrainedModel


def learning_curves(trained: TrainedModel, path: Path, measure: Measure, words: TrainerWords) -> Path:
    """Draw loss and metric by epoch for training and validation, and mark the epoch whose model was kept."""
    figure = new_figure(10, 3.8)
    epochs = [row.epoch for row in trained.history]
    panels = (("loss", "Loss"), ("score", measure.title))
    for axes, (name, title) in zip(figure.subplots(1, 2), panels, strict=True):
        marker = "o" if len(epochs) <= 30 else ""
        for kind, colour, style in (("train", SOFT, ":"), ("validation", ACCENT, "-")):
            values = [getattr(row, f"{kind}_{name}") for row in trained.history]
            axes.plot(epochs, values, style, color=colour, marker=marker, markersize=3.5, label=kind)
        axes.axvline(trained.selected_epoch, color=ACCENT, linewidth=0.8, linestyle=(0, (2, 3)))
        axes.set_xlabel(f"{words.epoch} (kept: {trained.selected_epoch})", color=SOFT)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(axis="y", color=LINE)
        set_title(axes, title)
        axes.legend(frameon=False, labelcolor=INK)
    return save(figure, path)


def prediction_grid(
    images: Sequence[Picture], truths: Sequence[str], predictions: Sequence[str], path: Path
) -> Path:
    """Draw a grid of up to 64 uint8 images (channels, height, width), each with its prediction, in red if wrong."""
    right = [truth == predicted for truth, predicted in zip(truths, predictions, strict=True)]
    return picture_grid(images, truths, predictions, right, path)
