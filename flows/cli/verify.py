"""`evergreen verify`: check which invariants of a run hold, with output for people and for programs.

Not a Prefect flow: the command also checks Prefect's records.
"""

import json
from collections.abc import Sequence

import click
from rich.table import Table
from rich.text import Text

from flows.cli.options import common
from flows.cli.output import say
from flows.cli.summary import standard_output
from tasks.verify.finding import Finding
from tasks.verify.runs import find_run, home_of, run_of_folder
from training.errors import EXIT_BAD_DATA, EXIT_OK, SettingError
from training.printable import printable
from training.storage import paths
from training.storage.paths import Home, RunPaths

_MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("–", "yellow")}


@click.command(
    epilog="Exit status: 3 when an invariant is broken or the run is not finished, else 0. A check that is not "
    "possible here breaks none."
)
@click.argument("run")
@click.option("--against", metavar="RUN", help="an undisturbed run that must have the same weights")
@click.option(
    "--recovery-bound",
    type=float,
    metavar="SECONDS",
    help="longest time that training may take to resume after a failure",
)
@common
def command(
    run: str, against: str | None, recovery_bound: float | None, verbose: bool, quiet: bool, as_json: bool
) -> int:
    """Check a run's records against its stored files.

    RUN is a run's folder, its run key or the beginning of the key, or a recipe (its newest run).
    """
    from flows.local.environment import log_to_terminal, prepare

    del quiet  # the findings are the output; the log adds warnings
    run_paths, home = locate(run)
    prepare(home)
    log_to_terminal(verbose, quiet=True)
    other = locate(against)[0] if against is not None else None
    from tasks.verify import verify

    findings = verify(run_paths, home, other, recovery_bound)
    print_findings(run_paths, findings)
    if text := last_night(run_paths, home):
        say(text)
    if as_json:
        listed = [finding.model_dump() for finding in findings]
        say(json.dumps({"run": str(run_paths.root), "summary": summary(findings), "findings": listed}))
    return exit_status(findings)


def locate(text: str) -> tuple[RunPaths, Home]:
    """The run that `text` names, and its home: a run folder anywhere, or a run of `EVERGREEN_HOME`.

    Raises :class:`training.errors.SettingError`, which lists the existing runs, when there is no such run.
    """
    if not text.strip():
        raise SettingError("the name of a run is empty, perhaps from a variable that is not set")
    if (run := run_of_folder(text)) is not None:
        return run, home_of(run)
    home = paths.home_to_read()
    return find_run(text, home), home


def last_night(run: RunPaths, home: Home) -> str:
    """Why the recipe's last night has no run that could be checked; empty if the last night is the run's own."""
    from tasks.history import ended_without_files

    night = ended_without_files(home, run.root.parent.name, run.root.name)
    if night is None:
        return ""
    when = f"{night.began_at.astimezone():%Y-%m-%d %H:%M}"
    return f"This is not the last night of {night.recipe}: that of {when} was {night.outcome}: {night.cause}"


def exit_status(findings: Sequence[Finding]) -> int:
    """0 when no invariant is broken; a check that can't be decided breaks no invariant."""
    return EXIT_BAD_DATA if any(finding.ok is False for finding in findings) else EXIT_OK


def print_findings(run: RunPaths, findings: Sequence[Finding]) -> None:
    """Print a line for each finding, and a line with their summary."""
    console = standard_output()
    table = Table.grid(padding=(0, 2))
    for column in range(4):
        table.add_column(no_wrap=column < 3, overflow="fold")
    for finding in findings:
        table.add_row(
            Text(*_MARKS[finding.ok]), finding.invariant, Text(finding.name), Text(printable(finding.detail))
        )
    console.print(table)
    console.print(Text(f"{run.root}: {summary(findings)}", style="bold"), soft_wrap=True)


def summary(findings: Sequence[Finding]) -> str:
    """How many checks hold, which invariants are broken, and how many checks are not possible here."""
    broken = dict.fromkeys(finding.invariant for finding in findings if finding.ok is False)
    undecided = sum(finding.ok is None for finding in findings)
    held = sum(finding.ok is True for finding in findings)
    text = f"{held} of {len(findings)} checks hold"
    if undecided:
        text += f", {undecided} not possible here"
    return text + (f"; broken: {', '.join(broken)}" if broken else "")
