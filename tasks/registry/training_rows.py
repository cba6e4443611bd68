"""Digests of the rows a registered model was trained on: stored with its MLflow run, read when models are compared.

The comparison leaves out test rows that one of the models was trained on: such rows can't show which model is better.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tasks.registry.aliases import DATASET_TAG
from training.data.differences import is_same_key
from training.data.manifest import read_manifest
from training.data.row_digests import Digests, contents, has_identity, known_rows
from training.data.tables.other_columns import content_columns, kinds_of
from training.errors import DataError
from training.plan import RunPlan
from training.records import DatasetVersion, TableSchema
from training.storage.files import temporary_folder
from training.storage.paths import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.training_rows")

TRAINING_ROWS = "training_rows.npy"
_PARTLY_KNOWN = "evergreen.training_rows_partly_known"


def record_training_rows(client: "MlflowClient", run_id: str, plan: RunPlan, version: DatasetVersion) -> None:
    """Store the digests of the training rows, 16 bytes a row, as an artifact of the MLflow run, but only once.

    The rows of a fine-tuned model include the rows on which its initial weights were trained. If these rows are not
    known, a tag of the MLflow run says so; the rows of models that start from this model then count as not known, too.
    """
    if _is_recorded(client, run_id):
        return
    rows, inherited = known_rows(version, "train"), inherited_rows(plan)
    if inherited is None:
        client.set_tag(run_id, _PARTLY_KNOWN, "true")
    with temporary_folder("rows") as folder:
        file = folder / TRAINING_ROWS
        np.save(file, rows if inherited is None or not len(inherited) else np.union1d(rows, inherited))
        client.log_artifact(run_id, str(file))


def inherited_rows(plan: RunPlan) -> Digests | None:
    """Sorted digests of the rows on which the run's initial weights were trained, or None when they are not known.

    Empty for a run that starts from new weights. Read from the run's folder, so no registry is needed.
    """
    if plan.initial is None:
        return np.empty(0, np.uint64)
    file = plan.paths.initial_rows
    try:
        return _read(file) if file.is_file() else None
    except DataError as error:
        log.warning("training rows of the initial weights are not known: %s: %s", file, error)
        return None


def training_rows_of(
    client: "MlflowClient", plan: RunPlan, number: str, model: str | None = None
) -> Digests | None:
    """Sorted digests of the rows that a version was trained on, or None when the rows are not known.

    The version is version `number` of `model`, by default the plan's model. Its digests are read from its MLflow run.
    Models registered before these digests were stored have none there: their digests are read from their dataset
    version in this home.
    """
    entry = client.get_model_version(model or plan.model, number)
    try:
        if entry.run_id and _is_recorded(client, entry.run_id):
            partly = client.get_run(entry.run_id).data.tags.get(_PARTLY_KNOWN)
            return None if partly else _recorded(client, entry.run_id)
        identity = entry.tags.get(DATASET_TAG)
        if identity is None:
            return None
        folder = Home(Path(plan.home)).dataset(plan.recipe.name, identity)
        return known_rows(read_manifest(folder, identity), "train") if folder.is_dir() else None
    except DataError as error:
        log.warning("training rows of %s version %s are not known: %s", model or plan.model, number, error)
        return None


def found_again(
    plan: RunPlan,
    version: DatasetVersion,
    table: TableSchema | None,
    identity: str | None,
    rows: Digests | None,
) -> tuple[Digests | None, bool]:
    """Digests by which the training rows of a model on `table` are found in `version`, and whether all can be found.

    `rows` are their digests as recorded, and `identity` is the fingerprint of the model's dataset. Rows without a key
    or a group are known by the content of their columns. If `version` lacks one of the columns, or has it as another
    kind, the digests of their content in the remaining columns are added, read from the model's dataset in this home.
    """
    if rows is None or table is None or version.table is None or table.text is not None:
        return rows, True
    old, new = (one.given or kinds_of(one) for one in (table, version.table))
    columns = content_columns(table, version)
    if old in (new, columns):  # in all of the model's columns, the content is recorded
        return rows, True
    try:
        dataset = read_manifest(
            Home(Path(plan.home)).dataset(plan.recipe.name, identity or ""), identity or ""
        )
        if is_same_key(dataset, version):
            return rows, True
        if columns:
            return np.union1d(rows, contents(dataset, "train", columns)), True
    except DataError:  # removed by `evergreen gc`, or in another home
        pass
    return rows, has_identity(version)


def training_rows_of_run(plan: RunPlan, version: DatasetVersion) -> Digests | None:
    """Sorted digests of the rows on which the model of a run was trained, or None if they are not known."""
    before = inherited_rows(plan)
    return None if before is None else np.union1d(known_rows(version, "train"), before)


def _is_recorded(client: "MlflowClient", run_id: str) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        return any(artifact.path == TRAINING_ROWS for artifact in client.list_artifacts(run_id))
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise


def _recorded(client: "MlflowClient", run_id: str) -> Digests:
    with temporary_folder("rows") as folder:
        return _read(Path(client.download_artifacts(run_id, TRAINING_ROWS, str(folder))))


def _read(file: Path) -> Digests:
    try:
        rows = np.load(file, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{TRAINING_ROWS} of its run is damaged ({error})") from error
    if rows.dtype != np.uint64 or rows.ndim != 1:
        raise DataError(f"{TRAINING_ROWS} of its run is no list of digests")
    known: Digests = rows
    return known
