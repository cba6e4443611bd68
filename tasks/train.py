"""In: a plan and its dataset version. Out: a finished training, also after failures of workers or of MLflow.

Runs in the flow's own process, so that Prefect's timeouts and cancellation reach the training. Fails with
TrainingError (final) when the training can't succeed.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.flow_retries import failures_of_this_flow_run
from tasks.flow_runs import artifact_key
from tasks.run_words import RunWords, words_of
from tasks.step import step
from tasks.terminal.progress import Bar, ProgressArtifact, TelemetryLog, terminal
from tasks.trackers.fan_out import also_tracked, send_all
from tasks.trackers.mlflow_run import Publisher, connect_once, open_run, record_inputs
from training.attempts.history import Attempt, Failure
from training.attempts.metrics import MetricsFile, Point
from training.plan import RunPlan
from training.plan_changes import with_data_changes
from training.recipe_copy import keep_copy
from training.records import DatasetVersion, Release, TrainedModel
from training.storage.files import sweep
from training.storage.paths import Home, RunPaths
from training.storage.record_files import find_or_set_aside, rewrite_undamaged, set_aside, write_record
from training.supervision.launch import finished, launch, make_job

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.train")


@step("train")
def train(plan: RunPlan, version: DatasetVersion) -> TrainedModel:
    """Train to the end, or reuse the finished training; afterwards every metric point is in MLflow.

    Prefect does not retry this task: lost workers and an unavailable MLflow server are handled inside, within the
    run's single failure budget.
    """
    publisher = Publisher(
        begin=lambda: _begin(plan, version),
        file=MetricsFile(plan.paths.metrics),
        outage_s=plan.settings.tracking.outage_s,
        with_system_metrics=plan.settings.tracking.system_metrics,
    )
    if (done := finished(plan.paths, plan.run_key)) is not None:
        # The process that trained may have ended before MLflow and the trackers had all points; the trial of a search
        # that this run reuses has sent none to trackers.
        if plan.settings.tracking.also:
            with also_tracked(plan) as others:
                send_all(MetricsFile(plan.paths.metrics), others)
        publisher.flush()
        return done
    job = make_job(plan.run_key, plan.paths, plan.recipe, plan.settings, version, plan.initial)
    with (
        shown_progress(plan.settings.epochs, words_of(plan)) as listener,
        also_tracked(plan) as others,
        publisher.running(
            listener, ProgressArtifact(artifact_key(plan.recipe.name, "training")), trackers=others
        ),
    ):
        return launch(job, failures_of_this_flow_run(plan.paths))


def _begin(plan: RunPlan, version: DatasetVersion) -> "tuple[MlflowClient, str]":
    client = connect_once(plan)
    run_id = open_run(client, plan)
    record_inputs(client, run_id, plan, version)
    return client, run_id


def keep_plan(plan: RunPlan) -> RunPlan:
    """Save the plan and a copy of the recipe in the run's folder, for every later attempt and for people to read.

    First removes files that an earlier start left half written, and sets damaged records aside: the caller holds the
    recipe's run lock, so no other process is writing them.
    Returns the plan as saved: its settings are those of this start, its changes, `first` and `initial` those of the
    run's first start.
    """
    home, name = Home(Path(plan.home)), plan.recipe.name
    run = plan.paths
    for folder in (
        run.root,
        run.checkpoints,
        run.evaluation,
        run.figures,
        home.datasets / name,
        home.raw / name,
    ):
        sweep(folder)
    keep_copy(plan.recipe, run.recipe)
    _set_damaged_aside(run)
    first = find_or_set_aside(run.ingredients, RunPlan, run.root.name)
    if first is not None:
        fields = ("changes", "first", "initial", "data_before", "data_changes")
        kept = {name: getattr(first, name) for name in fields}
        if run.release.is_file():  # a search reuses the run as a trial, which stays a run of its own
            kept["search"] = first.search
        plan = plan.model_copy(update=kept)
    write_record(run.ingredients, plan, run.root.name)
    return plan


def keep_data_changes(plan: RunPlan, version: DatasetVersion) -> RunPlan:
    """Count the rows that differ from those of the last run, once for a run; returns the plan as saved."""
    counted = with_data_changes(plan, version)
    if counted.data_changes != plan.data_changes:
        log.info("data since the last run: %s", counted.data_changes)
        write_record(plan.paths.ingredients, counted, plan.paths.root.name)
    return counted


def _set_damaged_aside(run: RunPaths) -> None:
    """Rename damaged records of a run, so that this start can write new records in their place.

    If metric points of a finished training are damaged, the training is repeated to compute them again, unless MLflow
    has all points already, which is the case when there is a release.
    """
    owner = run.root.name
    rewrite_undamaged(run.attempts, Attempt, owner)
    rewrite_undamaged(run.failures, Failure, owner)
    released = find_or_set_aside(run.release, Release, owner)
    if not run.model.exists():
        return
    if released is not None:
        rewrite_undamaged(run.metrics, Point, owner)
    elif MetricsFile(run.metrics).lines().damage:
        set_aside(run.model, f"metric points in {run.metrics} are damaged and computed again")


@contextmanager
def shown_progress(epochs: int, words: RunWords) -> Iterator[Callable[[Point], None]]:
    """Log telemetry lines and, on a terminal, show a progress bar below them."""
    telemetry = TelemetryLog(epochs, words)
    if not sys.stderr.isatty():
        yield telemetry
        return
    with Bar(epochs, words).shown(terminal()) as bar:

        def both(point: Point) -> None:
            bar(point)
            telemetry(point)

        yield both
