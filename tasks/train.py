"""In: a plan and its dataset version. Out: a finished training, whatever died on the way.

Runs in the flow's own process, so that Prefect's retries, timeouts and cancellation reach it; a retry goes on
from the newest checkpoint. Fails with TrainingError (final) when the training can't succeed.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from prefect import task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.tasks import exponential_backoff

from tasks.progress import Bar, TelemetryLog, terminal
from tasks.retry import worth_retrying
from tasks.tracking import Publisher, connect, open_run, record_inputs, system_metrics
from training.files import write_text
from training.launch import finished, launch, make_job
from training.metrics import MetricsFile, Point
from training.paths import Home
from training.plan import RunPlan
from training.records import DatasetVersion, TrainedModel


@task(
    name="train",
    retries=3,
    retry_delay_seconds=exponential_backoff(5),
    retry_jitter_factor=0.5,
    retry_condition_fn=worth_retrying,
    cache_policy=NO_CACHE,
)
def train(plan: RunPlan, version: DatasetVersion) -> TrainedModel:
    """Train to the end, or find it done, with every metric point in MLflow."""
    if (done := finished(plan.paths, plan.run_key)) is not None:
        return done
    client = connect(plan.settings.tracking.uri, Home(Path(plan.home)))
    run_id = open_run(client, plan)
    record_inputs(client, run_id, plan, version)
    job = make_job(plan.run_key, plan.paths, plan.recipe, plan.settings, version)
    with shown_progress(plan.settings.training.epochs) as listener:
        publisher = Publisher(
            client, run_id, MetricsFile(plan.paths.metrics), (listener, _prefect_progress())
        )
        try:
            with publisher.running(), system_metrics(run_id, plan.settings.tracking.system_metrics):
                return launch(job)
        except BaseException as error:
            client.set_tag(run_id, "evergreen.error", f"{type(error).__name__}: {error}"[:500])
            client.set_terminated(run_id, "FAILED" if isinstance(error, Exception) else "KILLED")
            raise


def keep_plan(plan: RunPlan) -> None:
    """Write down the plan beside the run, for `evergreen plan` to compare with and for people to read."""
    if not plan.paths.ingredients.is_file():
        write_text(plan.paths.ingredients, plan.model_dump_json(indent=1))


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


def _prefect_progress() -> Callable[[Point], None]:
    """A listener that moves a progress artifact in the Prefect UI, once an epoch."""
    artifact = create_progress_artifact(0.0, key="training", description="Training steps done")
    assert isinstance(artifact, UUID)

    def update(point: Point) -> None:
        if "validation/loss" in point.values:
            update_progress_artifact(artifact, 100 * point.step / max(1, point.total_steps))

    return update
