"""What all model formats share when they log a model to MLflow: its entry in the store, and its signature."""

from typing import TYPE_CHECKING

import numpy as np

from tasks.trackers.paged_search import all_pages
from training.records import DatasetVersion

if TYPE_CHECKING:
    from mlflow.models import ModelSignature
    from mlflow.types import Schema


def new_entry(run_id: str, version: DatasetVersion) -> str:
    """Create a logged model for the run and return its id; unfinished models of interrupted attempts are deleted."""
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModelStatus

    client = MlflowClient()
    run = client.get_run(run_id)
    place = run.info.experiment_id
    for left in all_pages(client.search_logged_models, [place], f"source_run_id = '{run_id}'"):
        if left.status != LoggedModelStatus.READY:
            client.delete_logged_model(left.model_id)
    kind = "classifier" if version.classes else "regressor"  # as MLflow's evaluators name them
    entry = client.create_logged_model(
        place, name="model", source_run_id=run_id, params=run.data.params, model_type=kind
    )
    return str(entry.model_id)


def column_signature(version: DatasetVersion) -> "ModelSignature":
    """The signature of a model on a table: one float column per feature, by name.

    The columns are float64, as those of pandas are; MLflow refuses to convert them to float32.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema

    assert version.table is not None
    inputs = Schema([ColSpec(DataType.double, column.name) for column in version.table.columns])
    return ModelSignature(inputs=inputs, outputs=output_schema(version))


def output_schema(version: DatasetVersion) -> "Schema":
    """Float32 probabilities (rows, classes), or the predicted numbers (rows,)."""
    from mlflow.types import Schema, TensorSpec

    shape = (-1, len(version.classes)) if version.classes else (-1,)
    return Schema([TensorSpec(np.dtype("float32"), shape)])
