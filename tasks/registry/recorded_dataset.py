"""The record of the dataset that an MLflow run had, as an artifact of the run."""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from training.records import DatasetVersion
from training.storage.files import temporary_folder

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.registry")

DATASET_FILE = "dataset.json"


def recorded_dataset(client: "MlflowClient", run_id: str | None) -> DatasetVersion | None:
    """The dataset of a run; None when the store has neither the run nor the record, or the record can't be read."""
    from mlflow.exceptions import MlflowException

    if not run_id:
        return None
    try:
        if all(file.path != DATASET_FILE for file in client.list_artifacts(run_id)):
            return None
        with temporary_folder("dataset") as folder:
            file = Path(client.download_artifacts(run_id, DATASET_FILE, str(folder)))
            return DatasetVersion.model_validate(json.loads(file.read_bytes()))
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
    except ValueError as error:  # damaged, or of another version of Evergreen
        log.warning("%s of MLflow run %s can't be read: %s", DATASET_FILE, run_id, error)
    return None
