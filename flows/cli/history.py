"""`evergreen history`: what became of each night of a model."""

import json
from typing import TYPE_CHECKING

import click

from flows.cli.options import common, prepared_home, tracking_uri
from flows.cli.output import say
from training.errors import EXIT_OK

if TYPE_CHECKING:
    from training.night_record import NightOutcome, NightRecord

_STYLES: "dict[NightOutcome, str]" = {
    "promoted": "green",
    "first": "green",
    "kept": "yellow",
    "held": "bold yellow",
    "refused": "red",
    "failed": "red",
    "interrupted": "red",
}


@click.command
@click.argument("model")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="show only the newest N nights")
@tracking_uri
@common
def command(
    model: str, last: int | None, tracking_uri: str | None, verbose: bool, quiet: bool, as_json: bool
) -> int:
    """Show what became of each run of `retrain`, the newest last.

    MODEL is a registered model, or a recipe: a name that `evergreen recipes` lists, or the path of a recipe file.
    """
    from flows.local.api import check_store_named
    from tasks.history import find_nights

    check_store_named(tracking_uri)
    home = prepared_home(verbose, quiet, read_only=True)
    name, nights = find_nights(model, home, tracking_uri)
    shown = nights[-last:] if last is not None else nights
    print_nights(name, shown)
    if as_json:
        say(json.dumps([night.model_dump(mode="json") for night in shown]))
    return EXIT_OK


def print_nights(model: str, nights: "list[NightRecord]") -> None:
    """Print a line for each night."""
    from rich.table import Table
    from rich.text import Text

    from flows.cli.summary import standard_output
    from training.printable import printable

    table = Table(
        box=None,
        padding=(0, 2, 0, 0),
        header_style="dim",
        title=f"nights of {printable(model)}",
        title_justify="left",
    )
    for title in ("when", "data", "metric", "outcome", "version"):
        table.add_column(title, overflow="fold")
    table.add_column("cause", overflow="fold", ratio=1)
    earlier: NightRecord | None = None
    for night in nights:
        when = f"{night.began_at.astimezone():%Y-%m-%d %H:%M}"
        cells = (when, data_text(night, earlier), metric_text(night), night.version, night.cause)
        texts = [Text(printable(cell)) for cell in cells]
        texts.insert(3, Text(night.outcome, style=_STYLES.get(night.outcome, "")))
        table.add_row(*texts)
        earlier = night if night.dataset_fingerprint else earlier
    standard_output().print(table)


def data_text(night: "NightRecord", earlier: "NightRecord | None") -> str:
    """The data of a night, and what changed in them: since the champion's in words, else since the night before."""
    if not night.dataset_fingerprint:
        return "not read"
    rows = "" if night.train_rows is None else f"{night.train_rows + (night.test_rows or 0):,} rows"
    if night.data_changes:
        return ", ".join(part for part in (rows, night.data_changes) if part)
    if earlier is None:
        return rows or "not prepared"
    same = earlier.dataset_fingerprint == night.dataset_fingerprint
    return ", ".join(part for part in (rows, "as the night before" if same else "new") if part)


def metric_text(night: "NightRecord") -> str:
    """The metric with the values of candidate and champion; empty for a night without a comparison."""
    from tasks.report_page.wording import number
    from training.problems import problem_with_metric

    if night.value is None:
        return ""
    try:
        problem = problem_with_metric({night.metric: night.value})
        word, spell = problem.metric_word, problem.spell
    except ValueError:  # a metric that the settings name
        word, spell = night.metric, number
    text = f"{word} {spell(night.value)}"
    return text if night.champion_value is None else f"{text}, champion {spell(night.champion_value)}"
