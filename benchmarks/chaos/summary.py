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
    codes = sorted({one.code for one in outcomes})
    days = sorted({one.at[:10] for one in outcomes})
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
    waits = [one.recovery_s for one in outcomes if one.recovery_s is not None]
    return [
        f"{fault.id}: {fault.what}",
        trainer,
        str(len(outcomes)),
        str(sum(one.injected for one in outcomes)),
        _counted(outcomes, lambda one: one.weights_identical),
        _counted(outcomes, lambda one: one.one_version),
        str(sum(one.metric_gaps is True for one in outcomes)),
        str(sum(one.metric_doubles is True for one in outcomes)),
        str(max(one.steps_repeated for one in outcomes)),
        f"{statistics.median(waits):.0f} / {max(waits):.0f}" if waits else "-",
        str(sum(bool(one.broken) for one in outcomes)),
    ]


def _counted(outcomes: Sequence[Outcome], value: Callable[[Outcome], bool | None]) -> str:
    """Count the outcomes whose `value` is true, as "n of m" where m leaves out the outcomes with value None."""
    told = [value(one) for one in outcomes if value(one) is not None]
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
    found = [
        f"- {one.fault}, {one.trainer}, trial {one.trial} ({one.moment}; exit {', '.join(map(str, one.statuses))}): "
        f"{broken.invariant} {broken.name}: {broken.detail.strip().splitlines()[-1][:300]}"
        for one in outcomes
        for broken in one.broken
    ]
    return ["## Broken", "", *(found or ["Nothing."]), ""]


def _missing(faults: Sequence[Fault]) -> list[str]:
    reasons = NOT_INJECTED | {fault.id: reason for fault in faults if (reason := fault.unavailable())}
    reasons |= {f"{fault.id}, {trainer}": why for fault in faults for trainer, why in fault.not_with.items()}
    return ["## Not injected", "", *(f"- {name}: {reason}" for name, reason in reasons.items())]
