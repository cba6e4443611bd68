"""Verify a run: which of the invariants hold, for people and for programs.

Not a Prefect flow: it asks whether Prefect, among others, tells the truth.
"""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from flows.cli.summary import standard_output
from tasks.verify.finding import Finding
from tasks.verify.runs import find_run, home_of, run_of_folder
from training.errors import EXIT_BAD_DATA, EXIT_OK
from training.printable import printable
from training.storage import paths
from training.storage.paths import Home, RunPaths

_MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("–", "yellow")}


def locate(text: str) -> tuple[RunPaths, Home]:
    """The run that `text` names, and its home: a run folder anywhere, or a run of `EVERGREEN_HOME`.

    Raises :class:`training.errors.SettingError`, which lists the runs there are, when there is no such run.
    """
    if (run := run_of_folder(text)) is not None:
        return run, home_of(run)
    place = paths.home()
    return find_run(text, place), place


def exit_status(findings: Sequence[Finding]) -> int:
    """0 when nothing is broken; what can't be told breaks nothing."""
    return EXIT_BAD_DATA if any(one.ok is False for one in findings) else EXIT_OK


def print_findings(run: RunPaths, findings: Sequence[Finding]) -> None:
    """A line for each finding, and one that counts them."""
    console = standard_output()
    table = Table.grid(padding=(0, 2))
    for column in range(4):
        table.add_column(no_wrap=column < 3, overflow="fold")
    for one in findings:
        table.add_row(Text(*_MARKS[one.ok]), one.invariant, Text(one.name), Text(printable(one.detail)))
    console.print(table)
    console.print(Text(f"{run.root}: {summary(findings)}", style="bold"), soft_wrap=True)


def summary(findings: Sequence[Finding]) -> str:
    """How many checks hold, which invariants are broken, and how many checks can't be told."""
    broken = dict.fromkeys(one.invariant for one in findings if one.ok is False)
    untold = sum(one.ok is None for one in findings)
    held = sum(one.ok is True for one in findings)
    text = f"{held} of {len(findings)} checks hold"
    if untold:
        text += f", {untold} can't be told here"
    return text + (f"; broken: {', '.join(broken)}" if broken else "")
