"""What a user reads in the terminal: summaries on standard output, with colours where the terminal has them."""

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tasks.next_commands import next_commands
from training.recipe import Recipe
from training.records import Release

if TYPE_CHECKING:
    from flows.doctor import Check
    from flows.preview import Preview
    from tasks.predict import PredictionSummary

_SHOWN_PARTS = 0.005  # parts of the wall time below this share are added up as "other"


def _console() -> Console:
    """Standard output; as wide as a line needs when it goes to a file."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)


def _grid() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def print_release(release: Release) -> None:
    """The end of a retraining: what came out, why, and what to do next."""
    console = _console()
    promoted = release.alias == "champion"
    head = f"{release.model} version {release.version}"
    if release.reused:
        headline = Text(f"Nothing changed: already {head} ({release.alias})", style="bold green")
    else:
        word = "promoted to champion" if promoted else "kept as challenger"
        headline = Text(f"{head} {word}", style="bold green" if promoted else "bold yellow")
    console.print()
    console.print(headline)
    console.print(_facts(release))
    console.print()
    console.print("[dim]next[/]")
    for command, purpose in next_commands(release):
        console.print(f"  [cyan]{command}[/]  [dim]{purpose}[/]")


def _facts(release: Release) -> Table:
    table, metrics = _grid(), release.metrics
    table.add_row("verdict", release.verdict.summary)
    for rule in release.verdict.rules:
        mark = "[green]✓[/]" if rule.passed else "[red]✗[/]"
        table.add_row("", f"{mark} {rule.explanation}")
    confidence = float(release.verdict.policy.get("confidence", 0.95))
    low, high = metrics["accuracy_low"], metrics["accuracy_high"]
    accuracy = f"{metrics['accuracy']:.4f}  ({low:.4f} to {high:.4f} at {confidence:.0%})"
    if "champion_accuracy" in metrics:
        accuracy += f"   champion {metrics['champion_accuracy']:.4f}"
    table.add_row("test accuracy", accuracy)
    table.add_row("epochs", f"{release.epochs}, weights of epoch {release.selected_epoch}")
    table.add_row(
        "data",
        f"{release.dataset_fingerprint[:16]}  {release.train_rows:,} train and {release.test_rows:,} test images",
    )
    table.add_row("run key", release.run_key[:16])
    table.add_row("weights", release.weights_digest[:16])
    table.add_row("time", _time(release))
    table.add_row("report", release.report)
    return table


def _time(release: Release) -> str:
    total = release.goodput.total_s
    shown = {name: s for name, s in release.goodput.parts.items() if total and s / total >= _SHOWN_PARTS}
    other = sum(release.goodput.parts.values()) - sum(shown.values())
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in shown.items())
    return f"{total:.1f} s: {parts}" + (f", other {other:.1f}" if other >= 0.05 else "")


def print_preview(made: "Preview") -> None:
    """A plan."""
    console, table = _console(), _grid()
    console.print(Text(f"{made.recipe}: {made.outcome}", style="bold"))
    table.add_row("source", f"{made.source}, {_size(made.source_bytes)}")
    if made.train_rows is not None:
        table.add_row(
            "data",
            f"{made.train_rows} train and {made.test_rows} test rows, {_size(made.dataset_bytes or 0)}",
        )
    table.add_row(
        "batch",
        f"{made.global_batch_size} rows a step, {made.batch_per_worker} on each of {made.world_size} workers",
    )
    if made.total_steps is not None:
        table.add_row("steps", f"{made.total_steps}, about {made.steps_per_epoch} an epoch")
    estimate = (
        "not known before a first run"
        if made.estimated_seconds is None
        else f"about {made.estimated_seconds:.0f} s"
    )
    table.add_row("time", estimate)
    for name, state in made.steps.items():
        table.add_row(name, state)
    table.add_row("changed since", "\n".join(made.changes) or "nothing")
    table.add_row("run key", made.run_key[:16])
    table.add_row("data fingerprint", made.dataset_fingerprint[:16])
    console.print(table)
    settings = _grid()
    for name, value in made.settings.items():
        settings.add_row(f"  {name}", "none" if value is None else str(value))
    console.print("[dim]settings[/]")
    console.print(settings)


def print_recipes(recipes: list[Recipe]) -> None:
    """The recipes that come along."""
    table = _grid()
    for recipe in recipes:
        table.add_row(f"[bold]{recipe.name}[/]", recipe.summary)
    _console().print(table)


def print_prediction(summary: "PredictionSummary") -> None:
    """What a batch prediction did."""
    console = _console()
    console.print(
        f"[bold]{summary.rows} images[/] scored by {summary.model} version {summary.version} "
        f"in {summary.seconds:.1f} s ({summary.images_per_s:,.0f} images/s)"
    )
    table = _grid()
    table.add_row("output", summary.output)
    for name, count in summary.counts.items():
        table.add_row(name, str(count))
    console.print(table)


def print_checks(checks: "list[Check]") -> None:
    """What the doctor found; remedies stand under what is wrong."""
    console = _console()
    marks = {True: "[green]✓[/]", False: "[red]✗[/]", None: "[yellow]·[/]"}
    table = Table.grid(padding=(0, 2))
    for check in checks:
        table.add_row(marks[check.ok], check.name, check.found)
        if check.ok is not True and check.remedy:
            table.add_row("", "", f"[dim]→ {check.remedy}[/]")
    console.print(table)


def _size(count: int) -> str:
    for unit in ("bytes", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000  # type: ignore[assignment]
    return f"{count:.1f} GB"
