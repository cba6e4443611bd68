"""Records of a search: its trials and their results, in a home's `searches/<recipe>/<start of key>/search.json`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from training.errors import EvergreenError
from training.plan import RunPlan
from training.records import DatasetVersion, ProblemName, Record, Release

Scheduler = Literal["asha", "pbt", "none"]
SCHEDULERS: tuple[Scheduler, ...] = ("asha", "pbt", "none")
Status = Literal["finished", "stopped early", "failed"]


class Trial(Record):
    """One trial of a search: a run with its own values of the searched settings."""

    number: int = Field(description="1 for the first")
    values: dict[str, Any] = Field(description="value of each searched setting, by its dotted name")
    run_key: str = Field(description="run key of the trial's run")
    generation: int = Field(1, description="1, or with scheduler pbt the number of the trial's generation")
    parent: int | None = Field(None, description="number of the trial whose weights this trial starts from")


class TrialResult(Record):
    """Result of a trial. Its scores are measured on the validation rows, at the best epoch so far."""

    number: int = Field(description="number of the trial")
    status: Status = Field(
        description="stopped early: the scheduler ended the trial; the same command does not continue it"
    )
    reused: bool = Field(False, description="whether the run was finished before the search")
    epochs: int = Field(0, description="epochs trained")
    best_epoch: int | None = Field(None, description="epoch whose weights are, or would be, kept")
    validation_loss: float | None = Field(
        None, description="loss at the best epoch, by which trials are compared"
    )
    validation_score: float | None = Field(None, description="the problem's metric, such as accuracy or rmse")
    seconds: float = Field(0.0, description="wall time of the trial")
    error: str = Field("", description="of a failed trial: why")
    kind: str = Field("", description="of a failed trial: name of the error's class")
    transient: bool = Field(False, description="of a failed trial: whether the same command tries it again")


class Search(Record):
    """A search: its trials, and the results so far."""

    recipe: str = Field(description="name of the recipe")
    key: str = Field(
        description="sha256 over the run keys of the first generation, the space and the scheduler; with pbt also the "
        "number of generations and the seed"
    )
    problem: ProblemName = Field(description="name of the problem")
    metric: str = Field(description="name of the problem's metric, such as accuracy or rmse")
    space: dict[str, str] = Field(description="values of each searched setting, as in --space")
    scheduler: Scheduler = Field(
        description="asha: worse trials end early; pbt: trials start from each other"
    )
    generations: int = Field(1, description="with scheduler pbt, how often the population is trained")
    seed: int = Field(description="seed of the trials' values")
    trials: tuple[Trial, ...] = Field(description="all trials so far, in order")
    results: tuple[TrialResult, ...] = Field((), description="results so far")
    mlflow_run_id: str = Field("", description="id of the parent run in MLflow")
    published: bool = Field(False, description="whether MLflow has all results")

    @property
    def size(self) -> int:
        """Number of trials of the whole search, at most; trials of later generations are not planned yet."""
        return self.generations * sum(trial.generation == 1 for trial in self.trials)

    @property
    def left(self) -> list[Trial]:
        """Trials that must run: trials without a result, and failed trials that the same command tries again."""
        done = {result.number for result in self.results if not result.transient}
        return [trial for trial in self.trials if trial.number not in done]

    @property
    def complete(self) -> bool:
        """Whether the same command would run no trial, and send no result to MLflow."""
        return self.published and not self.left

    def result_of(self, trial: Trial) -> TrialResult | None:
        """The trial's result, or None."""
        return next((result for result in self.results if result.number == trial.number), None)

    @property
    def winner(self) -> Trial | None:
        """The finished trial with the lowest validation loss; else the best trial that ended early, or None."""
        scored = [
            (result.status != "finished", result.validation_loss, result.number)
            for result in self.results
            if result.status != "failed" and result.validation_loss is not None
        ]
        number = min(scored)[2] if scored else None
        return next((trial for trial in self.trials if trial.number == number), None)

    def with_result(self, result: TrialResult) -> "Search":
        """This search with `result` added; an earlier result of the same trial is replaced."""
        others = self.without_result(result).results
        ordered = sorted([*others, result], key=lambda trial_result: trial_result.number)
        return self.model_copy(update={"results": tuple(ordered), "published": False})

    def without_result(self, result: TrialResult) -> "Search":
        """This search without the result of the trial with the number of `result`."""
        others = tuple(trial_result for trial_result in self.results if trial_result.number != result.number)
        return self.model_copy(update={"results": others, "published": False})


class SearchResult(Record):
    """Outcome of a search: all trials, the winner, and the version that its retraining registered."""

    search: Search = Field(description="the search, with all results")
    winner: int = Field(description="number of the winning trial")
    command: str = Field(description="the command that retrains with the winner's values")
    picture: str = Field(description="path of the parallel-coordinates picture")
    seconds: float = Field(0.0, description="wall time of this command")
    reused: bool = Field(False, description="whether all trials had been done by an earlier command")
    release: Release | None = Field(None, description="the registered version; none with --no-retrain")


class TrialJob(Record):
    """Description of a trial's run, which the process of the trial reads.

    `metric` is the name of the problem's metric, `folder` the search's folder. `rungs` are the epochs at which Ray Tune
    decides whether the trial continues. The score of each rung is reported; between two rungs, the score of the newest
    epoch is enough.
    """

    number: int
    plan: RunPlan
    version: DatasetVersion
    metric: str
    folder: str
    rungs: tuple[int, ...]


class TrialFailure(Record):
    """The error of a failed trial.

    The trial's process writes this record; for a trial that hangs, the process of the search does.

    `transient`: the same command tries the trial again. `may_pass`: that may succeed without a change by the
    user. `kind` is the result of :func:`kind_of`.
    """

    error: str
    transient: bool
    may_pass: bool = True
    kind: str = ""
    run_key: str = ""


def kind_of(error: EvergreenError) -> str:
    """Name of the subclass of :class:`EvergreenError` from which the class of `error` comes, such as DataError.

    The subclass determines the exit status.
    """
    classes = type(error).mro()
    return classes[max(0, classes.index(EvergreenError) - 1)].__name__


@dataclass(frozen=True)
class Event:
    """Event of a trial: the trial started, an epoch ended, or the trial ended.

    `epoch` is the number of the epoch that ended. `interrupted`: the trial ended because the search is being stopped.
    `crashed`: the process of the trial raised an error or died.
    """

    number: int
    what: Literal["started", "epoch", "ended"]
    epoch: int = 0
    interrupted: bool = False
    crashed: bool = False


def failure_file(folder: Path, number: int) -> Path:
    """File of a trial's :class:`TrialFailure` in the search's folder."""
    return folder / f"trial-{number}-failure.json"


def stop_file(folder: Path) -> Path:
    """File that requests a stop: while this file exists, the running trials of a search save a checkpoint and end."""
    return folder / "stop"
