"""In: a plan and its dataset version. Out: a finished training, whatever died on the way.

Runs in the flow's own process, so that Prefect's timeouts and cancellation reach it. Fails with TrainingError (final)
when the training can't succeed.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.flow_retries import failures_of_this_flow_run
from tasks.flow_runs import artifact_key
from tasks.step import step
from tasks.terminal.progress import Bar, ProgressArtifact, TelemetryLog, terminal
from tasks.trackers.fan_out import also_tracked
from tasks.trackers.mlflow_run import Publisher, connect_once, open_run, record_inputs
from training.attempts.history import Attempt, Failure
from training.attempts.metrics import MetricsFile, Point
from training.plan import RunPlan
from training.recipe import keep_copy
from training.records import DatasetVersion, Release, TrainedModel
from training.storage.files import sweep
from training.storage.paths import Home, RunPaths
from training.storage.record_files import find_or_set_aside, rewrite_undamaged, set_aside, write_record
from training.supervision.launch import finished, launch, make_job

if TYPE_CHECKING:
    from mlflow import MlflowClient


@step("train")
def train(plan: RunPlan, version: DatasetVersion) -> TrainedModel:
    """Train to the end, or find it done, with every metric point in MLflow.

    Prefect does not retry it: lost workers and an MLflow server that is away are dealt with inside, out of the
    run's one budget.
    """
    publisher = Publisher(
        begin=lambda: _begin(plan, version),
        file=MetricsFile(plan.paths.metrics),
        outage_s=plan.settings.tracking.outage_s,
        with_system_metrics=plan.settings.tracking.system_metrics,
    )
    if (done := finished(plan.paths, plan.run_key)) is not None:
        publisher.flush()  # the process that trained may have died before it had sent everything
        return done
    job = make_job(plan.run_key, plan.paths, plan.recipe, plan.settings, version)
    with (
        shown_progress(plan.settings.training.epochs) as listener,
        also_tracked(plan) as others,
        publisher.running(listener, ProgressArtifact(artifact_key(plan.recipe.name, "training")), *others),
    ):
        return launch(job, failures_of_this_flow_run(plan.paths))


def _begin(plan: RunPlan, version: DatasetVersion) -> "tuple[MlflowClient, str]":
    client = connect_once(plan)
    run_id = open_run(client, plan)
    record_inputs(client, run_id, plan, version)
    return client, run_id


def keep_plan(plan: RunPlan) -> RunPlan:
    """Write down the plan and the recipe beside the run: what every later attempt executes, and people read.

    What an earlier start left half written goes first, and what is damaged is set aside: the caller holds the
    recipe's run lock, so nobody writes it.
    Returns the plan as kept: settings are this start's, but what had changed is what it was at the first.
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
        plan = plan.model_copy(update={"changes": first.changes, "first": first.first})
    write_record(run.ingredients, plan, run.root.name)
    return plan


def _set_damaged_aside(run: RunPaths) -> None:
    """Move damaged records of a run out of the way of those that this start makes in their place.

    Metric points of a training that came to its end are computed again, unless MLflow has them: a release says so.
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
def shown_progress(epochs: int) -> Iterator[Callable[[Point], None]]:
    """Telemetry lines in the log, and on a terminal a bar below them."""
    telemetry = TelemetryLog(epochs)
    if not sys.stderr.isatty():
        yield telemetry
        return
    with Bar(epochs).shown(terminal()) as bar:

        def both(point: Point) -> None:
            bar(point)
            telemetry(point)

        yield both
