"""In: a prepared dataset. Out: how it differs from the champion's dataset, and whether the run is held.

A held run trains nothing until a person accepts its dataset. Fails with OutageError when MLflow does not answer and the
caller waits for it.
"""

import logging
from functools import partial
from pathlib import Path

from prefect.artifacts import create_table_artifact

from tasks.checks.damaged_columns import DeclaredColumns, declared_columns
from tasks.data_check import CHANGES_FILE, check_data
from tasks.flow_runs import artifact_key
from tasks.registry.acceptance import HELD_TAG, forget_held, note_held
from tasks.registry.recorded_dataset import DATASET_FILE
from tasks.step import step
from tasks.trackers.embedded_store import tags_of_model
from tasks.trackers.mlflow_run import connect_once, connect_patiently, open_run
from training.errors import HeldError, classify
from training.http_errors import status_of
from training.plan import RunPlan
from training.printable import printable
from training.profile_records import DataCheck
from training.recipe import Recipe
from training.records import DatasetVersion
from training.redaction import redact
from training.storage.paths import Home
from training.storage.record_files import write_record

log = logging.getLogger("evergreen.changes")


def hold_if_changed(
    plan: RunPlan, version: DatasetVersion, recipe: Recipe, wait: bool = False
) -> DataCheck | None:
    """Compare the dataset with the champion's; None when MLflow does not answer and the caller does not `wait`.

    Raises :class:`HeldError` when the run is held.
    """
    check: DataCheck | None = changes(plan, version, declared_columns(recipe), wait)
    if check is not None and check.outcome == "held":
        raise HeldError(check)
    return check


@step("changes", retries=2)
def changes(
    plan: RunPlan, version: DatasetVersion, declared: DeclaredColumns, wait: bool
) -> DataCheck | None:
    """Compare the dataset with the champion's, say what changed, and record it in the run's folder.

    A held dataset is also recorded in MLflow, for `evergreen accept`. See :func:`hold_if_changed` for `wait`
    and None.
    """
    try:
        connect = partial(connect_patiently if wait else connect_once, plan)
        check = check_data(plan, version, declared, connect)
    except Exception as error:
        known = classify(error)
        if wait or known is None or not known.transient:
            raise
        log.warning("%s The data are compared with the champion's when MLflow is back.", known)
        return None
    for change in check.changes:
        log.warning("data: %s", change.sentence)
    if check.outcome == "held":
        _record_held(plan, version, check)
    else:
        log.info("data: %s", check.summary)
        _forget_held(plan, check)
    if check.changes:
        _show_in_prefect(plan, check)
    write_record(plan.paths.data_check, check, plan.paths.root.name)
    return check


def _record_held(plan: RunPlan, version: DatasetVersion, check: DataCheck) -> None:
    client = connect_patiently(plan)
    run_id = open_run(client, plan)
    client.log_dict(run_id, version.model_dump(mode="json"), DATASET_FILE)
    client.log_dict(run_id, check.model_dump(mode="json"), CHANGES_FILE)
    note_held(client, Home(Path(plan.home)), check, run_id, plan.recipe.name)


def _forget_held(plan: RunPlan, check: DataCheck) -> None:
    """Remove the registry's mark of a held dataset, if this run compared its own dataset and is not held."""
    home = Home(Path(plan.home))
    if check.reference_version is None or check.outcome == "not compared":
        return
    if plan.settings.tracking.uri is None and HELD_TAG not in tags_of_model(home, plan.model):
        return
    forget_held(connect_patiently(plan), home, plan.model)


def _show_in_prefect(plan: RunPlan, check: DataCheck) -> None:
    """Create a table of the changes as an artifact of the flow run; a server that refuses it only causes a warning."""
    rows = [
        {
            "effect": change.effect,
            "column": printable(change.column or ""),
            "champion": printable(change.reference),
            "now": printable(change.current),
            "change": printable(change.sentence),
        }
        for change in check.changes
    ]
    try:
        create_table_artifact(
            table=rows,
            key=artifact_key(plan.recipe.name, "data-changes"),
            description=printable(check.summary),
        )
    except Exception as error:
        if classify(error) is None and not status_of(error):
            raise
        log.warning("Prefect does not take the table of changes (%s)", redact(str(error)))
