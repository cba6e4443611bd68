"""Functions with which all model formats log a model to MLflow: its entry in the store, requirements and outputs."""

from collections.abc import Collection
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.trackers.paged_search import all_pages
from training.errors import classify
from training.problems import problem_named
from training.records import DatasetVersion

if TYPE_CHECKING:
    from mlflow.types import Schema

# The files in a model's folder that MLflow writes for each format.
MLFLOW_FILES = frozenset(
    {
        "MLmodel",
        "conda.yaml",
        "python_env.yaml",
        "requirements.txt",
        "input_example.json",
        "serving_input_example.json",
        "environment_variables.txt",
        "registered_model_meta",  # beside a downloaded version
    }
)


def new_entry(run_id: str, version: DatasetVersion) -> str:
    """Create a logged model for the run and return its id; unfinished models of interrupted attempts are deleted."""
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModelStatus

    client = MlflowClient()
    run = client.get_run(run_id)
    experiment_id = run.info.experiment_id
    for left in all_pages(client.search_logged_models, [experiment_id], f"source_run_id = '{run_id}'"):
        if left.status != LoggedModelStatus.READY:
            client.delete_logged_model(left.model_id)
    kind = problem_named(version.problem).model_type
    entry = client.create_logged_model(
        experiment_id, name="model", source_run_id=run_id, params=run.data.params, model_type=kind
    )
    return str(entry.model_id)


def unexpected_entry(folder: Path, parts: Collection[str]) -> str | None:
    """Describe the first entry of a model's folder that is neither a file of MLflow nor in `parts`, or is a link."""
    for path in sorted(folder.iterdir()):
        if path.name not in MLFLOW_FILES and path.name not in parts:
            return f"it holds {path.name}"
        if path.is_symlink() or not (path.is_file() or path.name in parts):
            return f"{path.name} is no regular file"
    return None


def log_with_flavor(
    run_id: str,
    version: DatasetVersion,
    flavor: Any,
    flavor_module: str,
    metadata: dict[str, Any],
    **options: Any,
) -> str:
    """Log a model under the run with `flavor`, an object with a function `save_model`; returns the model's URI.

    `flavor_module` is the name of MLflow's module of the flavor. Raises an error of the store or of the machine as a
    :class:`training.errors.EvergreenError`, and any other error unchanged.
    """
    from mlflow.models import Model

    try:
        # Not log_model of MLflow's module: it needs a run that is active in this process, and then marks it FINISHED.
        info = Model.log(
            artifact_path=None,
            flavor=flavor,
            flavor_name=flavor_module,
            run_id=run_id,
            model_id=new_entry(run_id, version),
            metadata=metadata,
            **options,
        )
    except Exception as error:
        if (known := classify(error)) is not None:
            raise known from error
        raise
    uri: str = info.model_uri
    return uri


def requirements(*distributions: str) -> list[str]:
    """Pinned requirements of a logged model: MLflow and these installed distributions."""
    pinned = {name: distribution(name).version.partition("+")[0] for name in ("mlflow", *distributions)}
    return [f"{name}=={version}" for name, version in pinned.items()]


def output_schema(version: DatasetVersion) -> "Schema":
    """Float32 predictions: probabilities (rows, classes), or what else the dataset's problem predicts."""
    from mlflow.types import Schema, TensorSpec

    shape = (-1, *problem_named(version.problem).prediction_shape(version))
    return Schema([TensorSpec(np.dtype("float32"), shape)])
