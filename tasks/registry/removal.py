"""Remove the registered versions and the MLflow run of a run that nothing needs any more: for `evergreen gc`."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tasks.registry.aliases import ROLLED_BACK_TAG
from tasks.registry.lock import registry_lock
from tasks.registry.reign import is_anchor
from tasks.trackers.mlflow_run import HOME_TAG, RUN_KEY_TAG, is_of_another_home
from tasks.trackers.paged_search import all_pages
from training.errors import TransientError
from training.records import Release
from training.storage.paths import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


def versions_of_key(client: "MlflowClient", run_key: str) -> "list[ModelVersion]":
    """The versions of all registered models that a run with this key made, whichever home it belongs to."""
    return all_pages(client.search_model_versions, f"tags.`{RUN_KEY_TAG}` = '{run_key}'")


def is_in_service(client: "MlflowClient", run_key: str, release: Release | None) -> bool:
    """Whether a version of the run has an alias or is an anchor, in any registered model.

    The versions of the run are the released version, and all that were made with this run key.
    """
    versions = {(version.name, str(version.version)) for version in versions_of_key(client, run_key)}
    if release is not None:
        versions.add((release.model, release.version))
    return any(_serves(client, model, number) for model, number in sorted(versions))


def _serves(client: "MlflowClient", model: str, number: str) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        # A search of versions returns no aliases.
        pointed_to = client.get_registered_model(model).aliases.values()
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise
    return number in map(str, pointed_to) or is_anchor(client, model, number)


def is_kept_as_rolled_back(client: "MlflowClient", home: Home, release: Release) -> bool:
    """Whether the released version is never deleted, because it was rolled back.

    Its tag is the record by which no version with equal weights is promoted again.
    """
    from mlflow.exceptions import MlflowException

    try:
        version = client.get_model_version(release.model, release.version)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise
    return ROLLED_BACK_TAG in version.tags and _is_of_run(client, home, version, release)


def delete_version(client: "MlflowClient", home: Home, release: Release) -> None:
    """Delete the released version, and then the run's MLflow runs with their logged models.

    An MLflow run stays while a version needs it, and a version that was rolled back stays. Each may already be deleted.
    A version with this number that another run made is left alone: the registry was created again, or another home that
    shares the registry made the same model first. Raises :class:`TransientError` when an alias points to the version
    now.
    """
    _unless_gone(lambda: _delete_released(client, home, release))
    for run_id in _runs_of(client, home, release):
        if not all_pages(client.search_model_versions, f"run_id = '{run_id}'"):
            _unless_gone(partial(_delete_run, client, run_id))


def _runs_of(client: "MlflowClient", home: Home, release: Release) -> list[str]:
    """The MLflow runs of the run in this home; one in each experiment that `tracking.experiment` named.

    The first of them has the logged model, the newest is that of the release.
    """
    experiment_ids = [experiment.experiment_id for experiment in all_pages(client.search_experiments)]
    wanted = f"tags.`{RUN_KEY_TAG}` = '{release.run_key}' and tags.`{HOME_TAG}` = '{home.identity}'"
    run_ids = [run.info.run_id for run in all_pages(client.search_runs, experiment_ids, wanted)]
    return list(dict.fromkeys((release.mlflow_run_id, *run_ids)))


def _delete_released(client: "MlflowClient", home: Home, release: Release) -> None:
    with registry_lock(client, home, release.model) as lease:
        version = client.get_model_version(release.model, release.version)
        if not _is_of_run(client, home, version, release) or ROLLED_BACK_TAG in version.tags:
            return
        if version.aliases:
            raise TransientError(
                f"{release.model} version {release.version} became {' and '.join(version.aliases)} meanwhile. Run the "
                "same command again."
            )
        lease.check()
        client.delete_model_version(release.model, release.version)


def _is_of_run(client: "MlflowClient", home: Home, version: "ModelVersion", release: Release) -> bool:
    """Whether the run made the version, also in an MLflow run of this home that was deleted since."""
    if version.run_id == release.mlflow_run_id:
        return True
    elsewhere = is_of_another_home(client, home, version.run_id)
    return version.tags.get(RUN_KEY_TAG) == release.run_key and not elsewhere


def is_running(client: "MlflowClient", release: Release) -> bool:
    """Whether the run's MLflow status is active: the run is judged or registered again, or was killed meanwhile."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(release.mlflow_run_id).info.status in ("RUNNING", "SCHEDULED")
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise


def _delete_run(client: "MlflowClient", run_id: str) -> None:
    run = client.get_run(run_id)
    query = f"source_run_id = '{run_id}'"
    for model in all_pages(client.search_logged_models, [run.info.experiment_id], query):
        client.delete_logged_model(model.model_id)
    client.delete_run(run_id)


def _unless_gone(delete: Callable[[], object]) -> None:
    from mlflow.exceptions import MlflowException

    try:
        delete()
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
