"""The table of all trials as a Markdown page."""

import os
import platform
import statistics
from collections.abc import Callable, Sequence
from importlib.metadata import packages_distributions, version
from pathlib import Path

import psutil

from benchmarks.chaos.faults import NOT_INJECTED, Fault
from benchmarks.chaos.record import Outcome, of_fault
from benchmarks.chaos.workloads import WORKLOADS
from training.trainers.base import trainer_named

_COLUMNS = (
    "fault",
    "trainer",
    "trials",
    "fault met",
    "weights identical",
    "versions = 1",
    "metric gaps",
    "metric doubles",
    "steps repeated, max",
    "seconds to recover, median / max",
    "broken",
)


def write_summary(file: Path, faults: Sequence[Fault], outcomes: Sequence[Outcome], seed: int) -> None:
    """Write the page, replacing an earlier one."""
    lines = [
        *_head(outcomes, seed),
        *table(faults, outcomes),
        *_explained(),
        *_broken(outcomes),
        *_missing(faults),
    ]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _head(outcomes: Sequence[Outcome], seed: int) -> list[str]:
    memory = psutil.virtual_memory().total / 2**30
    packages = packages_distributions()  # the package xgboost is of the distribution xgboost or xgboost-cpu
    trainers = dict.fromkeys(workload.trainer for workload in WORKLOADS.values())
    of_trainers = [name for trainer in trainers for name in trainer_named(trainer).DISTRIBUTIONS]
    names = dict.fromkeys((*of_trainers, "deepspeed", "ray", "prefect", "mlflow"))
    libraries = [name for name in names if name in packages]
    versions = ", ".join(f"{name} {version(packages[name][0])}" for name in libraries)
    codes = sorted({outcome.code for outcome in outcomes})
    days = sorted({outcome.at[:10] for outcome in outcomes})
    return [
        "# Fault matrix",
        "",
        "Written by `make chaos`; each trial is a line of `chaos.jsonl`.",
        "",
        f"- Machine: {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}",
        f"- Versions: {versions}; stamps of the code: {', '.join(codes) or 'none yet'}",
        f"- Date: {' to '.join(dict.fromkeys((days[0], days[-1]))) if days else 'none yet'}; seed {seed}; "
        f"{len(outcomes)} trials",
        "",
    ]


def table(faults: Sequence[Fault], outcomes: Sequence[Outcome]) -> list[str]:
    """Markdown table with a row for each fault and trainer that has trials."""
    rows = [f"| {' | '.join(_COLUMNS)} |", f"|{' --- |' * len(_COLUMNS)}"]
    for fault in faults:
        for trainer in WORKLOADS:
            if mine := of_fault(outcomes, fault.id, trainer):
                rows.append(f"| {' | '.join(_row(fault, trainer, mine))} |")
    return [*rows, ""]


def _row(fault: Fault, trainer: str, outcomes: Sequence[Outcome]) -> list[str]:
    waits = [outcome.recovery_s for outcome in outcomes if outcome.recovery_s is not None]
    return [
        f"{fault.id}: {fault.what}",
        trainer,
        str(len(outcomes)),
        str(sum(outcome.injected for outcome in outcomes)),
        _counted(outcomes, lambda outcome: outcome.weights_identical),
        _counted(outcomes, lambda outcome: outcome.one_version),
        str(sum(outcome.metric_gaps is True for outcome in outcomes)),
        str(sum(outcome.metric_doubles is True for outcome in outcomes)),
        str(max(outcome.steps_repeated for outcome in outcomes)),
        f"{statistics.median(waits):.0f} / {max(waits):.0f}" if waits else "-",
        str(sum(bool(outcome.broken) for outcome in outcomes)),
    ]


def _counted(outcomes: Sequence[Outcome], value: Callable[[Outcome], bool | None]) -> str:
    """Count the outcomes whose `value` is true, as "n of m" where m leaves out the outcomes with value None."""
    told = [value(outcome) for outcome in outcomes if value(outcome) is not None]
    return f"{sum(map(bool, told))} of {len(told)}" if told else "-"


def _explained() -> list[str]:
    return [
        "*fault met*: trials in which the drawn moment was not after the end. *weights identical*: to an undisturbed "
        "run's, to the last bit; trials that resume under other conditions are not counted. *seconds to recover*: from "
        "the fault until training stepped again or, where none was left, until exit status 0; the start of a killed "
        "command is in it. *broken*: trials that broke an invariant of `evergreen verify` or a rule of this "
        "program: exit status 0 in the end, only documented ones before, no traceback, no process left.",
        "",
    ]


def _broken(outcomes: Sequence[Outcome]) -> list[str]:
    lines = [
        f"- {outcome.fault}, {outcome.trainer}, trial {outcome.trial} "
        f"({outcome.moment}; exit {', '.join(map(str, outcome.statuses))}): "
        f"{broken.invariant} {broken.name}: {broken.detail.strip().splitlines()[-1][:300]}"
        for outcome in outcomes
        for broken in outcome.broken
    ]
    return ["## Broken", "", *(lines or ["Nothing."]), ""]


def _missing(faults: Sequence[Fault]) -> list[str]:
    reasons = NOT_INJECTED | {fault.id: reason for fault in faults if (reason := fault.unavailable())}
    reasons |= {f"{fault.id}, {trainer}": why for fault in faults for trainer, why in fault.not_with.items()}
    return ["## Not injected", "", *(f"- {name}: {reason}" for name, reason in reasons.items())]
