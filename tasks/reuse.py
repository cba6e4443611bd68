"""Reuse of an earlier run with the same run key: its release, as long as the registry still has that version."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.gate import same_policy
from tasks.registry.aliases import CHAMPION, WEIGHTS_TAG, alias_of, champion_of, find_version
from tasks.registry.rollback import unfinished_rollback
from tasks.report_page.wording import summary
from tasks.trackers.mlflow_run import RUN_KEY_TAG, connect_once, experiment_name
from training.plan import RunPlan
from training.records import Release
from training.storage.paths import Home
from training.storage.record_files import find_record

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.reuse")


def find_release(
    plan: RunPlan, connect: "Callable[[RunPlan], MlflowClient]" = connect_once
) -> Release | None:
    """The finished release of this run key, or None when the run has something left to do.

    Changed gate settings or another champion require a new verdict on the same model. Another store, experiment or
    model name, or a version that is no longer in the registry, requires a new registration. In no case does the model
    train again.
    """
    release = read_release(plan)
    if release is None or release.model != plan.model:
        return None
    client = connect(plan)
    if unfinished_rollback(client, Home(Path(plan.home)), plan.model) is not None:
        return None  # the registration finishes the rollback
    mine = {RUN_KEY_TAG: plan.run_key, WEIGHTS_TAG: release.weights_digest}
    if find_version(client, plan.model, mine) != release.version or not _is_recorded(client, plan, release):
        return None
    alias = alias_of(client, plan.model, release.version)
    # A former champion was replaced or rolled back on purpose, so it is not judged again.
    judged_for_good = CHAMPION in (alias, release.alias)
    if not judged_for_good and not _verdict_stands(client, plan, release):
        return None
    if judged_for_good and champion_of(client, plan.model) is None:
        log.warning(
            "registered model %s has no version with the alias %s, which was removed in MLflow, so no version is in "
            "service. Set the alias in MLflow, or retrain with --force.",
            plan.model,
            CHAMPION,
        )
    text = summary(release.verdict, CHAMPION if judged_for_good else release.alias)
    verdict = release.verdict.model_copy(update={"summary": text})
    return release.model_copy(update={"reused": True, "alias": alias, "verdict": verdict})


def read_release(plan: RunPlan) -> Release | None:
    """The release that the run recorded last, without a query to the registry; None when it is missing or damaged."""
    return find_record(plan.paths.release, Release, plan.paths.root.name)


def _is_recorded(client: "MlflowClient", plan: RunPlan, release: Release) -> bool:
    """Whether the MLflow run exists, is not deleted, and is in the experiment that the settings name now."""
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
    """Whether a candidate that was not promoted would be judged by the same rules against the same champion."""
    compared_with = release.verdict.champion_version
    return (
        same_policy(release.verdict, plan.settings.gate) and champion_of(client, plan.model) == compared_with
    )
