"""The MLflow run of a search: the parent of its trials' runs, with the space as parameters and the results as files."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.trackers.mlflow_run import (
    ERROR_TAG,
    HOME_TAG,
    LONGEST_REASON,
    RECIPE_TAG,
    close_killed,
    close_run,
    connect_once,
    experiment_of,
    home_of,
    link_flow_run,
    log_final,
    open_run,
    record_inputs,
)
from tasks.trackers.paged_search import all_pages
from tasks.trackers.provenance import origin_tags
from tasks.trackers.publisher import AFTER_ERROR_S, Publisher, within
from training.attempts.metrics import MetricsFile
from training.plan import RunPlan
from training.records import DatasetVersion
from training.search.progress import LOSS
from training.search.records import Search, TrialResult

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

SEARCH_TAG, WINNER_TAG = "evergreen.search", "evergreen.winner"
TRIAL_TAG, STATUS_TAG = "evergreen.trial", "evergreen.trial_status"
_STATUS = {"finished": "FINISHED", "stopped early": "KILLED", "failed": "FAILED"}


def open_search(client: "MlflowClient", search: Search, plan: RunPlan) -> str:
    """Find or create the MLflow run of a search, set its status to RUNNING, and return its id.

    `plan` is the plan of any of the trials. The caller holds the recipe's run lock, so another run of this recipe and
    home with status RUNNING was killed.
    """
    experiment_id = experiment_of(client, plan)
    close_killed(client, plan)
    wanted = f"tags.`{SEARCH_TAG}` = '{search.key}' and tags.`{HOME_TAG}` = '{home_of(plan)}'"
    find = partial(
        all_pages, client.search_runs, [experiment_id], wanted, order_by=["attributes.start_time ASC"]
    )
    if not (runs := find()):
        tags = {SEARCH_TAG: search.key, RECIPE_TAG: search.recipe, HOME_TAG: home_of(plan)}
        name = f"{search.recipe}-search-{search.key[:8]}"
        client.create_run(experiment_id, run_name=name, tags=tags | origin_tags(plan))
        runs = find()
    # Twins: the answer to the request that created the run was lost, and MLflow's client repeated the request.
    opened, *twins = runs
    for twin in twins:
        client.delete_run(twin.info.run_id)
    run_id: str = opened.info.run_id
    _log_params(client, opened, search)
    client.update_run(run_id, status="RUNNING")
    link_flow_run(client, opened)
    return run_id


def _log_params(client: "MlflowClient", run: "Run", search: Search) -> None:
    """Record the parameters of a search that its MLflow run lacks: an earlier start may have been interrupted."""
    from mlflow.entities import Param

    facts = {"trials": search.size, "scheduler": search.scheduler, "seed": search.seed}
    if search.generations > 1:
        facts["generations"] = search.generations
    params = {f"space.{setting}": text for setting, text in search.space.items()} | facts
    new = [Param(name, str(value)) for name, value in params.items() if name not in run.data.params]
    client.log_batch(run.info.run_id, params=new)


def publish_trial(
    client: "MlflowClient",
    parent: str,
    plan: RunPlan,
    version: DatasetVersion,
    result: TrialResult,
    outage_s: float = 0.0,
) -> None:
    """Record a trial's run below the search's run: settings, inputs, all metric points, status and error of the trial.

    Raises :class:`training.errors.OutageError` when MLflow does not take the points within `outage_s` seconds.
    """
    run_id = open_run(client, plan, parent)
    record_inputs(client, run_id, plan, version)
    Publisher(begin=lambda: (client, run_id), file=MetricsFile(plan.paths.metrics), outage_s=outage_s).flush()
    client.set_tag(run_id, TRIAL_TAG, str(result.number))
    client.set_tag(run_id, STATUS_TAG, result.status)
    if result.error:
        client.set_tag(run_id, ERROR_TAG, result.error[:LONGEST_REASON])
    close_run(client, run_id, _STATUS[result.status])


def close_search(client: "MlflowClient", search: Search, picture: Path | None = None) -> None:
    """Record the results and the winner's scores in the search's MLflow run, and close the run."""
    run_id = search.mlflow_run_id
    client.log_dict(run_id, search.model_dump(mode="json"), "search.json")
    if picture is not None:
        client.log_artifact(run_id, str(picture))
    winner = search.winner
    result = search.result_of(winner) if winner is not None else None
    if result is not None:
        client.set_tag(run_id, WINNER_TAG, str(result.number))
        scores = {LOSS: result.validation_loss, f"validation/{search.metric}": result.validation_score}
        known = {name: value for name, value in scores.items() if value is not None}
        log_final(client, run_id, known, step=0, at_ms=int(time.time() * 1000))
    close_run(client, run_id, "FINISHED" if winner is not None else "FAILED")


@contextmanager
def search_failure_recorded(plan: RunPlan, search: Search) -> Iterator[None]:
    """Set the final status of the search's MLflow run when the block fails: FAILED, or KILLED for an interruption."""
    try:
        yield
    except BaseException as error:
        status = "FAILED" if isinstance(error, Exception) else "KILLED"
        # This error must reach the user even if MLflow fails, too; the next start closes a run that stays open.
        within(AFTER_ERROR_S, partial(_close, plan, search, status))
        raise


def _close(plan: RunPlan, search: Search, status: str) -> None:
    client = connect_once(plan)
    close_run(client, open_search(client, search, plan), status)
