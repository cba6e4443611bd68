"""Colours, axes and grids that all pictures of a run share. PNG files with a white background.

They are drawn through matplotlib's object interface without pyplot, whose global state is not safe with threads.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from tasks.report_page.inputs import Picture
from tasks.report_page.pictures import to_image

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, SOFT, LINE, ACCENT, BAD = "#17201b", "#55615a", "#e1e5df", "#1b6b47", "#b0271d"
_DPI = 144
_GRID_COLUMNS = 8
_GRID_LIMIT = 64
_CELL, _PICTURE, _CAPTION = 1.4, 1.3, 0.35  # inches


def new_figure(
    width: float, height: float, layout: Literal["constrained"] | None = "constrained"
) -> "Figure":
    """A new figure, `width` x `height` inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=_DPI, layout=layout, facecolor="white")


def set_title(axes: "Axes", text: str) -> None:
    """Set the title of a panel, and hide its frame."""
    axes.set_title(text, loc="left", color=INK, fontweight="bold", fontsize=11, parse_math=False)
    axes.tick_params(colors=SOFT, labelsize=9, length=0)
    axes.spines[:].set_visible(False)


def save(figure: "Figure", path: Path) -> Path:
    """Write a figure as a PNG file; returns its path."""
    figure.savefig(path, format="png")
    return path


def picture_grid(
    images: Sequence[Picture],
    truths: Sequence[str],
    predictions: Sequence[str],
    right: Sequence[bool],
    path: Path,
) -> Path:
    """Draw a grid of up to 64 images, each with its prediction, in red with the truth above where `right` is false."""
    shown = list(zip(images, truths, predictions, right, strict=True))[:_GRID_LIMIT]
    columns = max(1, min(_GRID_COLUMNS, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    wide, high = _CELL * columns, (_CELL + _CAPTION) * rows
    figure = new_figure(wide, high, layout=None)
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
        extent = (x - across, x + across, y + down, y - down)
        axes.imshow(image, "gray", vmin=0, vmax=255, interpolation="nearest", aspect="auto", extent=extent)
        text = predicted if good else f"{truth}\n→ {predicted}"
        lines = [line if len(line) <= 16 else f"{line[:15]}…" for line in text.split("\n")[:2]]
        colour = ACCENT if good else BAD
        above = y - down - 0.04
        axes.text(
            x, above, "\n".join(lines), size=8, color=colour, ha="center", va="bottom", parse_math=False
        )
    return save(figure, path)
