"""`results.md`: the results as a Markdown page."""

from collections.abc import Sequence

from benchmarks.harness.results import Line, Results, described
from benchmarks.harness.statistics import MOST_MISSED, MOST_SPREAD

_FEWEST_PAIRS = 5  # of a row with a goal, where its runs do not take too long
_CONTROL = 0.03  # the distance from 1 at which a row's definition calls an A/A control void
_HEADINGS = (
    "row",
    "what",
    "hooks",
    "A / B",
    "95 %",
    "goal",
    "met",
    "A",
    "B",
    "pairs",
    "spread",
    "CPU s, A / B",
    "peak MB, A / B",
)


def page(results: Results) -> str:
    """Render the whole page."""
    head = [
        "# Benchmarks",
        "",
        f"{results.date}; {described(results.machine)}; "
        + ", ".join(f"{name} {version}" for name, version in results.versions.items())
        + f"; code {results.code}; {results.size} run"
        + ("." if results.finished else ", not finished."),
        "",
        *_origins(results),
        "A is Evergreen, B the program that the row's file under `benchmarks/rows/` compares it with. Each ratio is "
        "the mean of paired processes in alternation, after one unmeasured run of each side where the row says so, "
        "with Student's t interval at 95 %; a goal is met by a mean that reaches it, with the worse end of the "
        f"interval at most {MOST_MISSED} away from it. All modules have bytecode, on both sides. The spread is the "
        "standard deviation of one run, from consecutive runs of the same side: above "
        f"{MOST_SPREAD:.0%} a row is void. Hooks: whether Evergreen used its hooks into Ray (docs/ray-hooks.md).",
        "",
        f"The definition of the rows asks for {_FEWEST_PAIRS} pairs or more, and calls a row void when a control of "
        f"two equal sides is further than {_CONTROL:.0%} from 1. Here, no control runs: the limit of "
        f"{MOST_SPREAD:.0%} for the spread is wider, since a spread also widens the interval."
        + _few_pairs(results.rows),
        "",
        f"| {' | '.join(_HEADINGS)} |",
        f"|{' --- |' * len(_HEADINGS)}",
    ]
    notes = [f"- **{name_of(line)}**: {said}" for line in results.rows if (said := _said(line))]
    here = (results.code, described(results.machine))
    others = {
        (line.code, line.date, line.machine) for line in results.rows if (line.code, line.machine) != here
    }
    for code, date, machine in sorted(others):
        measured = [
            name_of(line)
            for line in results.rows
            if (line.code, line.date, line.machine) == (code, date, machine)
        ]
        notes.append(f"- Measured with code {code} on {date}, {machine}: {', '.join(measured)}")
    return "\n".join([*head, *map(_row, results.rows), "", *notes, *_missed(results)]) + "\n"


def _origins(results: Results) -> list[str]:
    """A paragraph for results that do not all come from the same code, machine and day."""
    codes, machines, dates = (
        {getattr(line, name) for line in results.rows} - {""} for name in ("code", "machine", "date")
    )
    if len(codes) < 2:
        return []
    return [
        f"The lines are not of one program: they have {len(codes)} stamps of code, are from {min(dates)} to "
        f"{max(dates)}, and come from {len(machines)} {'machines' if len(machines) > 1 else 'machine'}. The line above "
        "describes the newest run; the notes below the table name the lines of each other stamp.",
        "",
    ]


def _few_pairs(lines: Sequence[Line]) -> str:
    few = [
        f"{name_of(line)} ({line.pairs})"
        for line in lines
        if line.goal is not None and 0 < line.pairs < _FEWEST_PAIRS
    ]
    return f" Lines with a goal and fewer pairs: {', '.join(few)}." if few else ""


def _said(line: Line) -> str:
    """The line's note, the versions of the row's own packages, and failures of earlier attempts."""
    parts = [line.note, ", ".join(f"{name} {version}" for name, version in line.versions.items())]
    if line.earlier_failures:
        parts.append(f"failed runs of earlier attempts with this code: {line.earlier_failures}")
    return "; ".join(filter(None, parts))


def title_of(line: Line) -> str:
    """The line's title, marked if the row has been defined in another way since."""
    return f"(earlier definition) {line.title}" if line.earlier_definition else line.title


def _missed(results: Results) -> list[str]:
    """The goals that are missed or could not be judged; docs/performance.md gives the reasons."""
    lines = [line for line in results.rows if line.goal is not None and not line.met]
    return (["", "## Goals that are missed, or not judged", "", *map(_shortfall, lines)]) if lines else []


def _shortfall(line: Line) -> str:
    if line.ratio is None:
        word = "missed: " if line.met is False else ""
        return f"- **{name_of(line)}**: {word}{line.note}"
    interval = "" if line.low is None else f" ({number(line.low)} to {number(line.high)})"
    word = "missed" if line.met is False else "void" if verdict(line) == "void" else "not judged"
    word += " by an earlier definition" if line.earlier_definition else ""
    return f"- **{name_of(line)}**, {word}: {number(line.ratio)}{interval}, goal {_goal(line)}"


def name_of(line: Line) -> str:
    """The line's id, and whether the hooks into Ray were off."""
    return line.id if line.hooks else f"{line.id} without hooks"


def verdict(line: Line) -> str:
    """The judgement in one word."""
    if line.ratio is None:
        return "not measured" if line.met is None else "**no**"
    if line.met is None:
        return "void" if line.note.find("void") >= 0 else "-"
    return "yes" if line.met else "**no**"


def summary(line: Line) -> str:
    """One line of text for the terminal."""
    if line.ratio is None:
        return f"{name_of(line):10} {line.title}: {line.note}"
    return (
        f"{name_of(line):10} {line.title}: {number(line.ratio)} ({number(line.low)} to {number(line.high)}), "
        f"goal {_goal(line)}, met: {verdict(line).strip('*')}; A {number(line.a)}, B {number(line.b)} {line.unit}"
        + (f"; spread {line.spread:.1%}" if line.spread is not None else "")
        + (f"; {line.note}" if line.note else "")
    )


def number(value: float | None) -> str:
    """Format with three significant digits, and with all integer digits from 1,000 on."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _row(line: Line) -> str:
    cells = (
        line.id,
        title_of(line),
        "on" if line.hooks else "off",
        number(line.ratio),
        f"{number(line.low)} to {number(line.high)}" if line.low is not None else "-",
        _goal(line),
        verdict(line),
        f"{number(line.a)} {line.unit}".strip(),
        f"{number(line.b)} {line.unit}".strip(),
        str(line.pairs),
        "-" if line.spread is None else f"{line.spread:.1%}",
        _both(line.cpu_s),
        _both(line.peak_mb),
    )
    return f"| {' | '.join(cells)} |"


def _goal(line: Line) -> str:
    return "-" if line.goal is None else f"{'>=' if line.at_least else '<='} {number(line.goal)}"


def _both(cost: dict[str, float]) -> str:
    return f"{number(cost['a'])} / {number(cost['b'])}" if cost else "-"
