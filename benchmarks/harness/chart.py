"""`results.svg`: each ratio relative to its goal on a logarithmic axis; points right of the line meet the goal."""

from pathlib import Path

from benchmarks.harness.page import name_of, title_of
from benchmarks.harness.results import Line, Results

_MET, _MISSED, _OPEN = "#2e7d32", "#c62828", "#757575"


def draw(results: Results, file: Path) -> None:
    """Draw every line that has a ratio and a positive goal, as its margin over the goal."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "evergreen"  # the same numbers give the same SVG file
    from matplotlib import pyplot

    shown = [line for line in results.rows if _margin(line) is not None]
    figure, axes = pyplot.subplots(figsize=(10, 1 + 0.2 * len(shown)), layout="constrained")
    for height, line in enumerate(reversed(shown)):
        margin, low, high = _margin(line) or (1.0, 1.0, 1.0)
        colour = _OPEN if line.met is None else _MET if line.met else _MISSED
        axes.plot([low, high], [height, height], color=colour, linewidth=2)
        axes.plot(margin, height, "o", color=colour)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(
        range(len(shown)), [f"{name_of(line)}  {title_of(line)}" for line in reversed(shown)], fontsize=7
    )
    axes.margins(y=0.02)
    axes.xaxis.set_major_formatter("{x:g}")
    figure.supxlabel(
        "how many times better than the goal; green: met, red: missed, grey: not judged", fontsize=9
    )
    figure.savefig(file, format="svg", metadata={"Date": None})
    pyplot.close(figure)


def _margin(line: Line) -> tuple[float, float, float] | None:
    """Ratio and interval divided by the goal, inverted if smaller is better; None unless all numbers are positive."""
    numbers = (line.ratio, line.low, line.high)
    if line.goal is None or line.goal <= 0 or any(value is None or value <= 0 for value in numbers):
        return None
    parts = [value / line.goal for value in numbers if value is not None]
    ratio, low, high = parts if line.at_least else [1 / part for part in parts]
    return ratio, low, high
