"""Summaries that the commands print on standard output, with colours if the terminal supports them."""

import shlex
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tasks.report_page.wording import size, summary, was_promoted
from tasks.run_words import words_of_run
from tasks.terminal.console import PrintableConsole
from tasks.terminal.next_commands import next_commands
from training.printable import printable
from training.problems import problem_with_metric
from training.problems.row_metrics import ROW_METRICS
from training.records import Release
from training.settings.schema import section_of_trainer
from training.storage.paths import home_to_read
from training.trainers.replay_outcome import spelled

if TYPE_CHECKING:
    from flows.cli.doctor import Check
    from flows.cli.recipes import RecipeFacts
    from flows.preview import Preview
    from tasks.cleanup.removals import Collection
    from tasks.predict import PredictionSummary
    from training.storage.paths import Home

_SHOWN_PARTS = 0.005  # parts of the wall time below this share are added up as "other"


def standard_output() -> Console:
    """A console on standard output; 160 columns wide when the output is not a terminal."""
    return PrintableConsole(highlight=False, width=None if sys.stdout.isatty() else 160)


def _grid() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _row(table: Table, *cells: str | Text) -> None:
    """Add a row without interpreting markup: text that looks like markup may be a path or the name of a class."""
    table.add_row(*(cell if isinstance(cell, Text) else Text(printable(cell)) for cell in cells))


def print_release(release: Release) -> None:
    """Print the outcome of a retraining, its reasons, and the commands to use next."""
    console = standard_output()
    promoted = release.alias == "champion"
    headline = Text(outcome(release), style="bold green" if promoted or release.reused else "bold yellow")
    console.print()
    console.print(headline)
    console.print(_facts(release))
    console.print()
    console.print("[dim]next[/]")
    for command, purpose in next_commands(release):
        line = Text.assemble("  ", (command, "cyan"), "  ", (purpose, "dim"))
        console.print(line, soft_wrap=True)


def outcome(release: Release) -> str:
    """The outcome of a retraining in one line."""
    head = f"{release.model} version {release.version}"
    if release.reused:
        return f"Nothing changed: already {head} ({'no alias' if release.alias == 'none' else release.alias})"
    if release.alias == "champion":
        return f"{head} " + ("promoted to champion" if was_promoted(release) else "is the champion already")
    if release.alias in ("previous", "none"):
        return f"{head} is not promoted: a version with its weights was rolled back"
    if release.verdict.champion_version is None:
        return f"{head} registered, but not promoted: there is no champion yet"
    return f"{head} kept as challenger"


def _facts(release: Release) -> Table:
    table = _grid()
    # The alias of a reused release is today's, not that of the verdict.
    alias = "champion" if release.reused else release.alias
    _row(table, "verdict", summary(release.verdict, alias))
    for rule in release.verdict.rules:
        mark = ("✓", "green") if rule.passed else ("✗", "red")
        _row(table, "", Text.assemble(mark, " ", rule.explanation))
    confidence = float(release.verdict.policy.get("confidence", 0.95))
    words = words_of_run(home_to_read(), release.recipe, release.run_key)
    if release.champion_jump:
        _row(table, "", release.champion_jump)
    scores = (*_gate_metric(release, confidence), *_scores(release.metrics, confidence))
    for name, text in (*scores, *_recipe_metrics(release)):
        _row(table, name, text)
    kept = f"{release.epochs}, {words.kept(release.selected_epoch)}"
    _row(table, f"{words.trainer.epoch}s", f"{kept}; {release.stopped}" if release.stopped else kept)
    rows = f"{release.train_rows:,} train and {release.test_rows:,} test {words.row}s"
    if release.initial:
        _row(table, "started from", release.initial)
    _row(table, "data", f"{release.dataset_fingerprint[:16]}  {rows}")
    if release.data_changes:
        _row(table, "since the last run", release.data_changes)
    if release.data is not None:
        _row(table, "since the champion", release.data.summary)
    _row(table, "run key", release.run_key[:16])
    _row(table, "weights", release.weights_digest[:16])
    _row(table, "reproducible", _reproducible(release.reproducible, release.reproducible_reason))
    _row(table, "time", _time(release))
    _row(table, "report", release.report)
    return table


def _gate_metric(release: Release, confidence: float) -> list[tuple[str, str]]:
    """The metric that the gate compares, with its interval; nothing if it is the problem's own, which follows."""
    chosen, numbers = release.verdict.metric, release.metrics
    if chosen is None or f"{chosen.name}_low" not in numbers or f"baseline_{chosen.name}" not in numbers:
        return []
    metric, name = ROW_METRICS[chosen.name], chosen.name
    value, low, high = (metric.spell(numbers[key]) for key in (name, f"{name}_low", f"{name}_high"))
    text = f"{value}  ({low} to {high} at {100 * confidence:.6g} %)"
    if f"champion_{name}" in numbers:
        text += f", champion {metric.spell(numbers[f'champion_{name}'])}"
    return [(f"test {metric.word}", text)]


def _scores(metrics: dict[str, float], confidence: float) -> list[tuple[str, str]]:
    """The problem's metric with its interval and that of the champion, and further scores of the problem."""
    problem = problem_with_metric(metrics)
    metric, spell = problem.metric, problem.spell
    value, low, high = (spell(metrics[name]) for name in (metric, f"{metric}_low", f"{metric}_high"))
    text = f"{value}  ({low} to {high} at {100 * confidence:.6g} %)"
    if f"champion_{metric}" in metrics:
        text += f"   champion {spell(metrics[f'champion_{metric}'])}"
    scores = [(problem.metric_word, text), *problem.further_scores(metrics)]
    return [(f"test {name}", figure) for name, figure in scores]


def _recipe_metrics(release: Release) -> list[tuple[str, str]]:
    """The metrics that the recipe added, beside those of the champion."""
    rows = []
    for name in release.recipe_metrics:
        champion = release.metrics.get(f"champion_{name}")
        text = f"{release.metrics[name]:.4g}" + ("" if champion is None else f"   champion {champion:.4g}")
        rows.append((f"test {name}", text))
    return rows


def _reproducible(reproducible: bool | None, reason: str) -> Text:
    return Text(spelled(reproducible, reason), style="bold yellow" if reproducible is False else "")


def _time(release: Release) -> str:
    total = release.goodput.total_s
    shown = {name: s for name, s in release.goodput.parts.items() if total and s / total >= _SHOWN_PARTS}
    other = sum(release.goodput.parts.values()) - sum(shown.values())
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in shown.items())
    parts += f", other {other:.1f}" if other >= 0.05 else ""
    if release.reused:
        return f"{release.seconds:.1f} s; the run that made this version took {total:.1f} s: {parts}"
    before = total - release.seconds
    earlier = f" and {before:.1f} s of training by an earlier command" if before >= 0.05 else ""
    return f"{release.seconds:.1f} s{earlier}: {parts}"


def print_preview(made: "Preview") -> None:
    """Print a plan."""
    console, table = standard_output(), _grid()
    console.print(Text(f"{made.recipe}: {made.outcome}", style="bold"))
    _row(table, "source", f"{made.source}, {size(made.source_bytes)}")
    if made.train_rows is not None:
        _row(
            table,
            "data",
            f"{made.train_rows} train and {made.test_rows} test rows, {size(made.dataset_bytes or 0)}",
        )
    if made.gate:
        _row(table, "gate", made.gate)
    if made.global_batch_size is not None:
        _row(table, "batch", _batch(made))
    _row(table, "steps", _steps(made))
    _row(table, "time", _estimate(made))
    if made.initial:
        _row(table, "starts from", made.initial)
    if made.trainer_chosen:
        _row(table, "trainer", f"{made.trainer_chosen}: the recipe names none")
    _row(table, "after a kill", made.after_kill)
    for name, state in made.steps.items():
        _row(table, name, state)
    nothing = "this is the first run of this recipe here" if made.first else "nothing"
    _row(table, "changed since the last run", "\n".join(made.changes) or nothing)
    if made.hint:
        _row(table, "hint", made.hint)
    _row(table, "reproducible", made.reproducible)
    _row(table, "run key", made.run_key[:16])
    _row(table, "data fingerprint", made.dataset_fingerprint[:16])
    console.print(table)
    settings = _grid()
    for name, value in made.settings.items():
        _row(settings, f"  {name}", "none" if value is None else str(value))
    console.print("[dim]settings[/]")
    console.print(settings)


def _batch(made: "Preview") -> str:
    if made.world_size == 1:
        return f"{made.global_batch_size} rows a step, on one worker"
    return (
        f"{made.global_batch_size} rows a step, {made.batch_per_worker} on each of {made.world_size} workers"
    )


def _steps(made: "Preview") -> str:
    if made.global_batch_size is None:  # each step uses all rows
        rows = "all rows" if made.learned_rows is None else f"all {made.learned_rows:,} rows to learn from"
        shared = f", shared by {made.world_size} workers" if made.world_size > 1 else ""
        epochs = f"{section_of_trainer(made.trainer).WORDS.epoch}s"
        if made.patience is None:
            return f"{made.epochs} {epochs} on {rows}{shared}"
        early = f"fewer if the validation loss does not improve for {made.patience} {epochs}"
        return f"at most {made.epochs} {epochs} on {rows}{shared}; {early}"
    if made.total_steps is None:
        return "known after the data are prepared"
    if not made.total_steps:
        return "none, so training is refused: a batch needs more rows than there are training rows"
    return f"{made.total_steps}, {made.steps_per_epoch} an epoch (feed {made.settings['data.feed']})"


def _estimate(made: "Preview") -> str:
    if made.estimated_seconds is None:
        return f"not known: {made.estimated_from}"
    if not made.estimated_seconds:
        return f"none: {made.estimated_from}"
    return f"about {_duration(made.estimated_seconds)}, {made.estimated_from}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


_UNITS = {"step": "any step", "epoch": "any epoch", "round": "any block of rounds"}


def print_recipes(recipes: "list[RecipeFacts]") -> None:
    """Print name, summary, problem, trainer, promise and extra of recipes."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("recipe", "problem", "trainer", "resumes at", "same bits after a kill", "extra", "summary"):
        table.add_column(title)
    for recipe in recipes:
        same = "yes" if recipe.same_bits_after_kill else "no"
        cells = (
            recipe.problem,
            recipe.trainer,
            _UNITS[recipe.resumes],
            same,
            recipe.extra or "none",
            recipe.summary,
        )
        _row(table, Text(recipe.name, style="bold"), *cells)
    standard_output().print(table)


def print_prediction(summary: "PredictionSummary") -> None:
    """Print the summary of a batch prediction."""
    console = standard_output()
    by = f" scored by {summary.model} version {summary.version} in {summary.seconds:.1f} s"
    speed = f" ({summary.images_per_s:,.0f} {summary.unit}/s)"
    console.print(Text.assemble((f"{summary.rows} {summary.unit}", "bold"), by, speed))
    table = _grid()
    _row(table, "output", summary.output)
    for name, count in summary.counts.items():
        _row(table, name, str(count))
    for name, value in (("mean", summary.mean), ("least", summary.least), ("most", summary.most)):
        if value is not None:
            _row(table, f"{name} {summary.value}", f"{value:.6g}")
    for column, count in summary.unknown_categories.items():
        _row(table, "new category", f"{count} rows in column {column}, scored as an unknown category")
    console.print(table)


def print_checks(checks: "list[Check]") -> None:
    """Print the checks of `evergreen doctor`, with the remedy below each failed check or note."""
    console = standard_output()
    marks = {True: Text("✓", "green"), False: Text("✗", "red"), None: Text("·", "yellow")}
    table = Table.grid(padding=(0, 2))
    for check in checks:
        _row(table, marks[check.ok], check.name, check.found)
        if check.ok is not True and check.remedy:
            _row(table, "", "", Text(f"→ {check.remedy}", style="dim"))
    console.print(table)


def print_collection(collection: "Collection", home: "Home", dry_run: bool) -> None:
    """Print what `evergreen gc` removed or would remove, largest first, and the total size."""
    console = standard_output()
    table = Table.grid(padding=(0, 2))
    for removal in sorted(collection.removals, key=lambda removal: removal.bytes, reverse=True):
        freed = "" if removal.kind in ("version", "lock") else size(removal.bytes)
        _row(table, removal.kind, removal.name, freed, Text(removal.why, style="dim"))
    console.print(table)
    for recipe, why in collection.left_alone.items():
        console.print(Text(f"{recipe} is left for the next gc: {why}", style="yellow"), soft_wrap=True)
    for recipe, why in collection.failed.items():
        where = recipe or "outside of the home"
        console.print(Text(f"{where}: not everything could be removed: {why}", style="red"), soft_wrap=True)
    total = size(sum(removal.bytes for removal in collection.removals))
    text = f"{total} would be freed" if dry_run else f"{total} freed"
    console.print(
        Text(f"{text} in {home.root}" if collection.removals else "Nothing to remove", style="bold")
    )
    stores = {removal.tracking_uri for removal in collection.removals if removal.kind == "version"}
    for store in () if dry_run else sorted(stores):
        console.print(Text(_how_to_free(store or home.mlflow_uri)), soft_wrap=True)


def _how_to_free(uri: str) -> str:
    """How to free the disk space of runs that are deleted in the MLflow store or server at `uri`."""
    is_server = uri.startswith(("http://", "https://"))
    where = " on the server's machine, with the store of the server," if is_server else ""
    backend = "URL_OF_THE_STORE" if is_server else shlex.quote(uri)
    command = f"mlflow gc --backend-store-uri {backend} --tracking-uri {shlex.quote(uri)}"
    return f"MLflow keeps the files of deleted runs. To free their disk space, run{where} {command}"
