"""What a run key that was seen before means: the release it led to, as long as the registry still has it."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.gate import same_policy
from tasks.registry.aliases import (
    CHAMPION,
    WEIGHTS_TAG,
    alias_of,
    champion_of,
    find_version,
    unfinished_rollback,
)
from tasks.trackers.mlflow_run import RUN_KEY_TAG, connect_once, experiment_name
from training.plan import RunPlan
from training.records import Release
from training.storage.paths import Home
from training.storage.record_files import find_record

if TYPE_CHECKING:
    from mlflow import MlflowClient


def find_release(
    plan: RunPlan, connect: "Callable[[RunPlan], MlflowClient]" = connect_once
) -> Release | None:
    """The finished release of this run key, or None when something is left to do.

    A gate that was set differently since, or another champion, asks for a new verdict on the same model; another
    store, experiment or model name, and a version that is gone from the registry, for a new registration. None of
    them trains again.
    """
    release = read_release(plan)
    if release is None or release.model != plan.model:
        return None
    client = connect(plan)
    if unfinished_rollback(client, Home(Path(plan.home)), plan.model) is not None:
        return None  # registering anew finishes it
    mine = {RUN_KEY_TAG: plan.run_key, WEIGHTS_TAG: release.weights_digest}
    if find_version(client, plan.model, mine) != release.version or not _is_recorded(client, plan, release):
        return None
    alias = alias_of(client, plan.model, release.version)
    # What was champion once and is not now was replaced or rolled back on purpose: it is not judged again.
    judged_for_good = CHAMPION in (alias, release.alias)
    if not judged_for_good and not _verdict_stands(client, plan, release):
        return None
    return release.model_copy(update={"reused": True, "alias": alias})


def read_release(plan: RunPlan) -> Release | None:
    """What the run wrote down last, without asking the registry; None when it is damaged: then it is made again."""
    return find_record(plan.paths.release, Release, plan.paths.root.name)


def _is_recorded(client: "MlflowClient", plan: RunPlan, release: Release) -> bool:
    """Whether the run stands in the experiment that the settings name now."""
    from mlflow.exceptions import MlflowException

    try:
        run = client.get_run(release.mlflow_run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise
    experiment = client.get_experiment(run.info.experiment_id)
    return run.info.lifecycle_stage == "active" and experiment.name == experiment_name(plan)


def _verdict_stands(client: "MlflowClient", plan: RunPlan, release: Release) -> bool:
    """Whether a candidate that was kept would be judged by the same rules against the same champion."""
    compared_with = release.verdict.champion_version
    return (
        same_policy(release.verdict, plan.settings.gate) and champion_of(client, plan.model) == compared_with
    )
