"""The record of a trial: one JSON line, which a restarted chaos program reads to skip finished trials."""

from collections.abc import Iterable
from pathlib import Path

from pydantic import Field

from training.records import Record


class Broken(Record):
    """An invariant that a trial violated or, in `untold`, an invariant that could not be checked."""

    invariant: str
    name: str
    detail: str


class Outcome(Record):
    """One trial. `statuses` are the exit statuses of all starts of the command; negative for a signal."""

    fault: str
    trainer: str = Field(
        "torch", description="name of the workload; older lines are of the PyTorch loop and do not say so"
    )
    trial: int = Field(description="1 for the first of this fault and trainer")
    seed: int
    moment: str = Field(description="what was done when")
    injected: bool = Field(description="whether the fault met anything; the run may have been faster")
    statuses: tuple[int, ...]
    weights_identical: bool | None = Field(description="to the last bit; None where they need not be")
    one_version: bool | None
    metric_gaps: bool | None
    metric_doubles: bool | None
    steps_repeated: int = Field(
        description="most optimizer steps that one interruption made do again, to the last metric point"
    )
    attempts: int = Field(description="starts of the training loop")
    recovery_s: float | None = Field(
        description="from the fault until training stepped again or, where none was left, until exit status 0"
    )
    seconds: float = Field(description="from the first start to exit status 0")
    broken: tuple[Broken, ...]
    untold: tuple[Broken, ...]
    code: str = Field(description="benchmarks.harness.results.stamp of the code")
    at: str


def read_outcomes(file: Path, seed: int) -> list[Outcome]:
    """Recorded trials of this seed; a truncated line is skipped."""
    outcomes = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else []:
        try:
            outcome = Outcome.model_validate_json(line)
        except ValueError:
            continue
        if outcome.seed == seed:
            outcomes.append(outcome)
    return outcomes


def add_outcome(file: Path, outcome: Outcome) -> None:
    """Append one line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as out:
        out.write(outcome.model_dump_json() + "\n")


def of_fault(outcomes: Iterable[Outcome], fault: str, trainer: str) -> list[Outcome]:
    """Trials of one fault with one trainer."""
    return [outcome for outcome in outcomes if (outcome.fault, outcome.trainer) == (fault, trainer)]
