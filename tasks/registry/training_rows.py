"""Digests of the rows a registered model was trained on: stored with its MLflow run, read when models are compared.

The comparison leaves out test rows that one of the models was trained on: such rows can't show which model is better.
"""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from tasks.registry.aliases import DATASET_TAG
from training.data.manifest import read_manifest
from training.data.row_digests import Digests, known_rows
from training.errors import DataError
from training.plan import RunPlan
from training.records import DatasetVersion
from training.storage.paths import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.training_rows")

TRAINING_ROWS = "training_rows.npy"


def record_training_rows(client: "MlflowClient", run_id: str, version: DatasetVersion) -> None:
    """Store the digests of the training rows, 16 bytes a row, as an artifact of the MLflow run, but only once."""
    if _is_recorded(client, run_id):
        return
    with TemporaryDirectory(prefix="evergreen-rows-") as folder:
        file = Path(folder) / TRAINING_ROWS
        np.save(file, known_rows(version, "train"))
        client.log_artifact(run_id, str(file))


def training_rows_of(client: "MlflowClient", plan: RunPlan, number: str) -> Digests | None:
    """Sorted digests of the rows that version `number` was trained on, or None when the rows are not known.

    Read from the version's MLflow run. Models registered before these digests were stored have none there: their
    digests are read from their dataset version in this home.
    """
    entry = client.get_model_version(plan.model, number)
    try:
        if entry.run_id and _is_recorded(client, entry.run_id):
            return _recorded(client, entry.run_id)
        identity = entry.tags.get(DATASET_TAG)
        if identity is None:
            return None
        folder = Home(Path(plan.home)).dataset(plan.recipe.name, identity)
        return known_rows(read_manifest(folder, identity), "train") if folder.is_dir() else None
    except DataError as error:
        log.warning("training rows of %s version %s are not known: %s", plan.model, number, error)
        return None


def _is_recorded(client: "MlflowClient", run_id: str) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        return any(one.path == TRAINING_ROWS for one in client.list_artifacts(run_id))
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise


def _recorded(client: "MlflowClient", run_id: str) -> Digests:
    with TemporaryDirectory(prefix="evergreen-rows-") as folder:
        file = client.download_artifacts(run_id, TRAINING_ROWS, folder)
        try:
            rows = np.load(file, allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise DataError(f"{TRAINING_ROWS} of its run is damaged ({error})") from error
    if rows.dtype != np.uint64 or rows.ndim != 1:
        raise DataError(f"{TRAINING_ROWS} of its run is no list of digests")
    known: Digests = rows
    return known
