"""The summary of a search on standard output: a table of its trials, the winner, and the result of the retraining."""

from collections.abc import Callable

from rich.table import Table
from rich.text import Text

from flows.cli.summary import print_release, standard_output
from tasks.terminal.search_progress import shown_trial
from training.printable import printable
from training.problems import problem_named
from training.search.records import SearchResult, Trial, TrialResult

_COLOURS = {"finished": "green", "reused": "green", "stopped early": "yellow", "failed": "red"}


def print_search(result: SearchResult) -> None:
    """Print the trials, the winner, the command that retrains with the winner's values, and its result."""
    console, search = standard_output(), result.search
    console.print()
    console.print(_trials(result))
    for trial_result in search.results:
        if trial_result.error:
            console.print(
                Text(printable(f"trial {trial_result.number}: {trial_result.error}"), style="red"),
                soft_wrap=True,
            )
    winner = search.trials[result.winner - 1]
    winner_result = search.result_of(winner)
    ended = (
        "that finished"
        if winner_result is not None and winner_result.status == "finished"
        else "(none of them finished)"
    )
    headline = (
        f"trial {winner.number} has the least validation loss of the trials {ended}: {shown_trial(winner)}"
    )
    console.print(Text(printable(headline), style="bold green"))
    if result.reused:
        console.print("Nothing changed: an earlier command ran this search")
    console.print(Text.assemble(("command  ", "dim"), (printable(result.command), "cyan")), soft_wrap=True)
    console.print(Text.assemble(("picture  ", "dim"), printable(result.picture)), soft_wrap=True)
    console.print(Text.assemble(("time     ", "dim"), f"{result.seconds:.1f} s"))
    if result.release is not None:
        print_release(result.release)
    else:
        console.print("The winner was not retrained, so no model was compared or registered")


def _trials(result: SearchResult) -> Table:
    search, problem = result.search, problem_named(result.search.problem)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("trial", *(["generation"] if search.generations > 1 else []), "values", "status"):
        table.add_column(title)
    for title in ("epochs", "best", "validation loss", problem.metric_word, "seconds"):
        table.add_column(title, justify="right")
    for trial in search.trials:
        trial_result = search.result_of(trial)
        style = "bold" if trial.number == result.winner else ""
        number, *cells = _cells(trial, trial_result, problem.spell)
        generation = [Text(str(trial.generation))] if search.generations > 1 else []
        table.add_row(number, *generation, *cells, style=style)
    return table


def _cells(trial: Trial, result: TrialResult | None, spell: Callable[[float], str]) -> list[Text]:
    values = Text(printable(shown_trial(trial)))
    if result is None:
        return [Text(str(trial.number)), values, Text("no result", style="red")]
    status = "reused" if result.reused else result.status
    score = result.validation_score
    return [
        Text(str(trial.number)),
        values,
        Text(status, style=_COLOURS[status]),
        Text(str(result.epochs)),
        Text(str(result.best_epoch or "-")),
        Text("-" if result.validation_loss is None else f"{result.validation_loss:.4g}"),
        Text("-" if score is None else spell(score)),
        Text(f"{result.seconds:.1f}"),
    ]
