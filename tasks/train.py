"""In: a plan and its dataset version. Out: a finished training, whatever died on the way.

Runs in the flow's own process, so that Prefect's timeouts and cancellation reach it. Fails with TrainingError (final)
when the training can't succeed.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.progress import Bar, ProgressArtifact, TelemetryLog, terminal
from tasks.step import step
from tasks.tracking import Publisher, connect_once, open_run, record_inputs
from training.files import sweep, write_text
from training.launch import finished, launch, make_job
from training.metrics import MetricsFile, Point
from training.paths import Home
from training.plan import RunPlan
from training.recipe import keep_copy
from training.records import DatasetVersion, TrainedModel

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
        publisher.running(listener, ProgressArtifact()),
    ):
        return launch(job)


def _begin(plan: RunPlan, version: DatasetVersion) -> "tuple[MlflowClient, str]":
    client = connect_once(plan)
    run_id = open_run(client, plan)
    record_inputs(client, run_id, plan, version)
    return client, run_id


def keep_plan(plan: RunPlan) -> RunPlan:
    """Write down the plan and the recipe beside the run: what every later attempt executes, and people read.

    What an earlier start left half written goes first: the caller holds the recipe's run lock, so nobody writes it.
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
    keep_copy(plan.recipe, plan.paths.recipe)
    if plan.paths.ingredients.is_file():
        first = RunPlan.model_validate_json(plan.paths.ingredients.read_text(encoding="utf-8"))
        plan = plan.model_copy(update={"changes": first.changes, "first": first.first})
    write_text(plan.paths.ingredients, plan.model_dump_json(indent=1))
    return plan


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
