"""MLflow runs: one for each run key, with its inputs, final status and final metrics, each recorded once."""

import shlex
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.trackers.embedded_store import artifacts_of, check_writes_here, deleted_experiment
from tasks.trackers.mlflow_store import connect as connect
from tasks.trackers.mlflow_store import connect_once as connect_once
from tasks.trackers.mlflow_store import connect_patiently as connect_patiently
from tasks.trackers.paged_search import all_pages
from tasks.trackers.provenance import FLOW_RUN_TAG, dataset_inputs, flow_run_tags, origin_tags
from tasks.trackers.publisher import AFTER_ERROR_S, within
from tasks.trackers.publisher import Publisher as Publisher
from training.errors import HeldError, SettingError, StopRequestedError
from training.plan import RunPlan
from training.records import DatasetVersion
from training.redaction import redact
from training.settings.overrides import describe
from training.storage.paths import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

RUN_KEY_TAG = "evergreen.run_key"
RECIPE_TAG = "evergreen.recipe"  # of an MLflow run: the recipe's name
HOME_TAG = "evergreen.home"  # identifies the home that a run belongs to, in a store that several homes share
ERROR_TAG = "evergreen.error"
DATA_TAG = "evergreen.data"  # how the run's dataset differs from the champion's
LONGEST_REASON = 500  # characters of an error or a reason in a tag, which MLflow's pages show whole
_DELETED = "deleted"  # MLflow keeps a deleted experiment, with its name, until `mlflow gc`
PARENT_RUN_TAG = "mlflow.parentRunId"  # MLflow shows a run with this tag below its parent
_OPENING = threading.Lock()  # two threads of this process that open the same run would create the run twice


def open_run(
    client: "MlflowClient", plan: RunPlan, parent: str | None = None, leaves_others: bool = False
) -> str:
    """Find or create the MLflow run with this run key, set it to RUNNING, and return its id.

    The caller holds the recipe's run lock, so any other run of this recipe and home with status RUNNING was killed:
    such runs get the status KILLED, unless the run is a trial of the search whose MLflow run is `parent`, or the caller
    `leaves_others` as they are. Raises :class:`SettingError` when the experiment was deleted.
    """
    experiment_id = experiment_of(client, plan)
    if parent is None and not leaves_others:
        close_killed(client, plan)
    with _OPENING:
        opened = _find_or_create(client, experiment_id, plan)
    run_id: str = opened.info.run_id
    client.update_run(run_id, status="RUNNING")
    link_flow_run(client, opened)
    if ERROR_TAG in opened.data.tags:
        client.delete_tag(run_id, ERROR_TAG)
    if parent is not None:
        client.set_tag(run_id, PARENT_RUN_TAG, parent)  # the newest search that has this trial
    return run_id


def _find_or_create(client: "MlflowClient", experiment_id: str, plan: RunPlan) -> "Run":
    """The run with this run key, after the removal of any twin."""
    if not (runs := _runs_of_key(client, experiment_id, plan)):
        tags = {
            RUN_KEY_TAG: plan.run_key,
            RECIPE_TAG: plan.recipe.name,
            HOME_TAG: home_of(plan),
            **origin_tags(plan),
        }
        client.create_run(experiment_id, run_name=f"{plan.recipe.name}-{plan.run_key[:8]}", tags=tags)
        runs = _runs_of_key(client, experiment_id, plan)
    opened, *twins = runs
    for twin in twins:
        client.delete_run(twin.info.run_id)
    return opened


def tags_of_run(client: "MlflowClient", run_id: str | None) -> dict[str, str]:
    """The tags of an MLflow run; empty when the store does not have the run."""
    from mlflow.exceptions import MlflowException

    if run_id is None:
        return {}
    try:
        return dict(client.get_run(run_id).data.tags)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return {}
        raise


def is_of_another_home(client: "MlflowClient", home: Home, run_id: str | None) -> bool:
    """Whether an MLflow run names another home. A run that names none, or that is not in the store, is this home's."""
    return tags_of_run(client, run_id).get(HOME_TAG, home.identity) != home.identity


def link_flow_run(client: "MlflowClient", run: "Run") -> None:
    """Tag the MLflow run with the Prefect flow run that calls this; a later flow run replaces the tag."""
    from mlflow.entities import RunTag

    tags = flow_run_tags()
    if run.data.tags.get(FLOW_RUN_TAG) != tags.get(FLOW_RUN_TAG, run.data.tags.get(FLOW_RUN_TAG)):
        client.log_batch(run.info.run_id, tags=[RunTag(*tag) for tag in tags.items()])


def experiment_name(plan: RunPlan) -> str:
    """Name of the run's MLflow experiment: `tracking.experiment`, or else the recipe's name."""
    return plan.settings.tracking.experiment or plan.recipe.name


def experiment_of(client: "MlflowClient", plan: RunPlan) -> str:
    """Id of the run's experiment, which is created if it does not exist."""
    check_embedded_experiment(plan)
    check_experiment(client, plan)
    return experiment_named(client, Home(Path(plan.home)), plan.settings.tracking.uri, experiment_name(plan))


def experiment_named(client: "MlflowClient", home: Home, uri: str | None, name: str) -> str:
    """Id of the experiment `name`, which is created if it does not exist. `uri` is the setting `tracking.uri`."""
    experiment = client.get_experiment_by_name(name) or _new_experiment(client, home, uri, name)
    return str(experiment.experiment_id)


def check_experiment(client: "MlflowClient", plan: RunPlan) -> None:
    """Raises :class:`SettingError` when the run's experiment was deleted; creates no experiment."""
    experiment = client.get_experiment_by_name(experiment_name(plan))
    if experiment is not None and experiment.lifecycle_stage == _DELETED:
        raise _deleted(plan, experiment.experiment_id)


def check_version(client: "MlflowClient", plan: RunPlan) -> None:
    """Raises :class:`SettingError` when the server is older than MLflow 3. The experiment of `plan` exists.

    Otherwise the registration would fail, after the training.
    """
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import ENDPOINT_NOT_FOUND, ErrorCode

    experiment = client.get_experiment_by_name(experiment_name(plan))
    try:
        client.search_logged_models([] if experiment is None else [experiment.experiment_id], max_results=1)
    except MlflowException as error:
        if error.error_code != ErrorCode.Name(ENDPOINT_NOT_FOUND):
            raise
        raise SettingError(
            f"tracking.uri: the server at {redact(str(plan.settings.tracking.uri))} does not know logged models, so it "
            "is older than MLflow 3: update the server."
        ) from error


def check_embedded_experiment(plan: RunPlan) -> None:
    """:func:`check_experiment` for a run that uses the home's own store, which is read without MLflow.

    Also raises :class:`ResourceError` when the home was moved or copied, and the run would write into another home.
    """
    if plan.settings.tracking.uri is not None:
        return
    home, name = Home(Path(plan.home)), experiment_name(plan)
    if (number := deleted_experiment(home, name)) is not None:
        raise _deleted(plan, number)
    check_writes_here(home, name)


def _deleted(plan: RunPlan, experiment_id: str) -> SettingError:
    store = redact(plan.settings.tracking.uri or Home(Path(plan.home)).mlflow_uri)
    return SettingError(
        f"tracking.experiment: MLflow's experiment {experiment_name(plan)!r} was deleted, so no run can be recorded in "
        f"the experiment. Restore the experiment with `MLFLOW_TRACKING_URI={shlex.quote(store)} mlflow experiments "
        f"restore --experiment-id {experiment_id}`, or set another name."
    )


def _new_experiment(client: "MlflowClient", home: Home, uri: str | None, name: str) -> "Experiment":
    from mlflow.exceptions import MlflowException

    location = None
    if not (uri or "").startswith("http"):
        # With a bare database MLflow would write artifacts under the working directory; a server has its own root.
        location = artifacts_of(home, name).as_uri()
    try:
        client.create_experiment(name, artifact_location=location)
    except MlflowException as error:
        # Another run created it first, or an answer was lost and MLflow's client repeated the request.
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    made = client.get_experiment_by_name(name)
    assert made is not None
    return made


def _runs_of_key(client: "MlflowClient", experiment_id: str, plan: RunPlan) -> "list[Run]":
    """This home's runs with this run key, oldest first.

    There are two when the answer to the request that created the run was lost: MLflow's client repeats the request.
    """
    wanted = f"tags.`{RUN_KEY_TAG}` = '{plan.run_key}' and tags.`{HOME_TAG}` = '{home_of(plan)}'"
    return all_pages(client.search_runs, [experiment_id], wanted, order_by=["attributes.start_time ASC"])


def record_inputs(client: "MlflowClient", run_id: str, plan: RunPlan, version: DatasetVersion) -> None:
    """Record settings as parameters, run key ingredients and dataset as files, train and test rows as inputs."""
    from mlflow.entities import Param

    known = client.get_run(run_id).data.params
    settings = {name: redact(str(value)) for name, value in describe(plan.settings).items()}
    params = [Param(name, value) for name, value in settings.items() if name not in known]
    client.log_batch(run_id, params=params)
    client.log_dict(run_id, {"run_key": plan.run_key, "ingredients": plan.ingredients}, "ingredients.json")
    client.log_dict(run_id, version.model_dump(mode="json"), "dataset.json")
    client.log_inputs(run_id, dataset_inputs(plan, version))


def close_killed(client: "MlflowClient", plan: RunPlan) -> None:
    """Set other RUNNING runs of this recipe and home, in all experiments, to KILLED: their processes are gone."""
    ours = (
        f"attributes.status = 'RUNNING' and tags.`{RECIPE_TAG}` = '{plan.recipe.name}' "
        f"and tags.`{HOME_TAG}` = '{home_of(plan)}'"
    )
    experiment_ids = [experiment.experiment_id for experiment in all_pages(client.search_experiments)]
    for run in all_pages(client.search_runs, experiment_ids, ours):
        if run.data.tags.get(RUN_KEY_TAG) != plan.run_key:
            client.set_terminated(run.info.run_id, "KILLED")


def home_of(plan: RunPlan) -> str:
    """Identity of the run's home, for :data:`HOME_TAG`."""
    return Home(Path(plan.home)).identity


def close_run(client: "MlflowClient", run_id: str, status: str) -> None:
    """Set the final status of the MLflow run: FINISHED, FAILED or KILLED."""
    client.set_terminated(run_id, status)


@contextmanager
def failure_recorded(plan: RunPlan) -> Iterator[None]:
    """Set the MLflow run's final status when the block fails: FAILED for an error, KILLED if interrupted or held."""
    try:
        yield
    except BaseException as error:
        # This error must reach the user even if MLflow fails, too; the next start closes a run that stays open.
        within(AFTER_ERROR_S, partial(_record_failure, plan, error))
        raise


def _record_failure(plan: RunPlan, error: BaseException) -> None:
    client = connect_once(plan)
    run_id = open_run(client, plan)
    if isinstance(error, HeldError):
        client.set_tag(run_id, DATA_TAG, redact(str(error))[:LONGEST_REASON])
        close_run(client, run_id, "KILLED")
        return
    client.set_tag(run_id, ERROR_TAG, redact(f"{type(error).__name__}: {error}")[:LONGEST_REASON])
    stopped = isinstance(error, StopRequestedError) or not isinstance(error, Exception)
    close_run(client, run_id, "KILLED" if stopped else "FAILED")


def log_final(client: "MlflowClient", run_id: str, metrics: dict[str, float], step: int, at_ms: int) -> None:
    """Record the final metrics at step `step`. Repeated calls add no duplicates; a changed value is a newer point.

    A new metric gets the Unix time `at_ms` (milliseconds), a changed metric the current time.
    """
    from mlflow.entities import Metric

    known: dict[str, float] = client.get_run(run_id).data.metrics
    now = int(time.time() * 1000)
    changed = {name: value for name, value in metrics.items() if known.get(name) != value}
    points = [Metric(name, value, now if name in known else at_ms, step) for name, value in changed.items()]
    client.log_batch(run_id, metrics=points)
