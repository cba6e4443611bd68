"""Display of a search's progress: a bar over all trials on a terminal, and a line in the log when a trial ends."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tasks.terminal.progress import terminal
from training.problems import problem_named
from training.search.planning import PlannedSearch
from training.search.records import Trial, TrialResult
from training.search.space import Values, text_of

log = logging.getLogger("evergreen.search")


def shown_values(values: Values) -> str:
    """Values of a trial as readable text, such as `learning_rate=0.003, optimizer=sgd`."""
    return ", ".join(f"{name.rpartition('.')[2]}={text_of(value)}" for name, value in values.items())


def shown_trial(trial: Trial) -> str:
    """Values of a trial as readable text, and the trial whose weights it starts from."""
    start = f" from trial {trial.parent}" if trial.parent else ""
    return shown_values(trial.values) + start


def shown_scores(result: TrialResult, problem: Any) -> str:
    """Scores of a trial on the validation rows, such as `validation loss 0.12, accuracy 0.97 at epoch 4`."""
    if result.validation_loss is None or result.validation_score is None:
        return "no epoch"
    score = f"{problem.metric_word} {problem.spell(result.validation_score)}"
    return f"validation loss {result.validation_loss:.4g}, {score} at epoch {result.best_epoch}"


@dataclass
class SearchProgress:
    """Shows the events of trials: results in the log, and all progress in the bar, if there is a bar."""

    planned: PlannedSearch
    bar: Any = None
    _task: Any = None
    _running: dict[int, int] = field(default_factory=dict)
    _results: dict[int, TrialResult] = field(default_factory=dict)

    def started(self, number: int) -> None:
        """A trial's process has started."""
        self._running[number] = 0
        self._draw()

    def epoch(self, number: int, epoch: int) -> None:
        """A trial has trained `epoch` epochs."""
        self._running[number] = epoch
        self._draw()

    def ended(self, result: TrialResult) -> None:
        """A trial has a result."""
        self._running.pop(result.number, None)
        self._results[result.number] = result
        trial, total = self.planned.trial(result.number), self.planned.search.size
        what = "reused" if result.reused else result.status
        scores = shown_scores(result, problem_named(self.planned.search.problem))
        why = f": {result.error}" if result.error else f": {scores}"
        log.info("trial %d/%d %s%s (%s)", result.number, total, what, why, shown_trial(trial))
        self._draw()

    def _draw(self) -> None:
        if self.bar is None:
            return
        if self._task is None:
            self._task = self.bar.add_task("search", total=self.planned.search.size, counts="")
        losses = [
            result.validation_loss for result in self._results.values() if result.validation_loss is not None
        ]
        best = f"  best validation loss {min(losses):.4g}" if losses else ""
        self.bar.update(
            self._task,
            completed=len(self._results) + sum(map(self._share, self._running)),
            counts=f"{len(self._results)} of {self.planned.search.size} trials, {len(self._running)} running{best}",
        )

    def _share(self, number: int) -> float:
        """Share of a running trial's epochs that are done."""
        return self._running[number] / self.planned.plans[number - 1].settings.epochs


@contextmanager
def shown_search(planned: PlannedSearch) -> Iterator[SearchProgress]:
    """Show the progress of a search while the block runs; with a bar if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield SearchProgress(planned)
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (
        TextColumn("  [bold]search[/]"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[counts]}"),
    )
    with Progress(*columns, console=terminal(), transient=True) as bar:
        yield SearchProgress(planned, bar)
