"""Log the trained model in MLflow's PyTorch format: plain MLflow can load and serve it without Evergreen."""

import traceback
from importlib.metadata import version as installed
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.trackers.paged_search import all_pages
from training.data.images.decoding import Pixels
from training.errors import TrainingError, classify
from training.records import DatasetVersion
from training.trainers.torch.serving import predictor

if TYPE_CHECKING:
    from mlflow.models import ModelSignature
    from torch import nn

_SAME = 1e-4  # largest allowed difference of a probability between the trained and the loaded model
_TRIED_BATCHES = (1, 3, 64)


def log_serving_model(
    run_id: str,
    module: "nn.Module",
    version: DatasetVersion,
    example: Pixels,
    metadata: dict[str, Any],
    weights: str | None = None,
) -> str:
    """Export `module` with torch.export and log it under the run; returns the model's URI.

    Input is uint8 (rows, channels, height, width), output float32 probabilities (rows, classes). `example` needs
    several rows: with one row torch.export would fix the batch size at 1. An exported program can't be trained
    further, so the file `weights` is logged with it; docs/recipes.md shows how to load that file. Raises
    :class:`TrainingError` when the model can't be exported.
    """
    import mlflow.pytorch
    from mlflow.models import Model

    try:
        # Not mlflow.pytorch.log_model: it needs a run that is active in this process, and then marks it FINISHED.
        info = Model.log(
            artifact_path=None,
            flavor=mlflow.pytorch,
            run_id=run_id,
            model_id=_new_entry(run_id),
            pytorch_model=module,
            signature=_signature(version),
            input_example=example,
            pip_requirements=[
                f"{name}=={installed(name).partition('+')[0]}" for name in ("mlflow", "torch", "numpy")
            ],
            serialization_format="pt2",
            extra_files=[weights] if weights else None,
            metadata=metadata,
        )
    except Exception as error:
        if (known := classify(error)) is not None:
            raise known from error
        if _is_of_export(error):
            raise TrainingError(
                f"the recipe's model can't be exported by torch.export ({error}). Keep data-dependent control flow "
                "out of its forward pass."
            ) from error
        raise
    uri: str = info.model_uri
    return uri


def _is_of_export(error: Exception) -> bool:
    """Whether `error` was raised inside torch.export, which also raises built-in exception types."""
    frames = traceback.extract_tb(error.__traceback__)
    return any("torch/export/" in frame.filename for frame in frames)


def _new_entry(run_id: str) -> str:
    """Create a logged model for the run and return its id; unfinished models of interrupted attempts are deleted."""
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModelStatus

    client = MlflowClient()
    run = client.get_run(run_id)
    place = run.info.experiment_id
    for left in all_pages(client.search_logged_models, [place], f"source_run_id = '{run_id}'"):
        if left.status != LoggedModelStatus.READY:
            client.delete_logged_model(left.model_id)
    entry = client.create_logged_model(
        place, name="model", source_run_id=run_id, params=run.data.params, model_type="classifier"
    )
    return str(entry.model_id)


def _signature(version: DatasetVersion) -> "ModelSignature":
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    return ModelSignature(
        inputs=Schema([TensorSpec(np.dtype("uint8"), (-1, *version.shape))]),
        outputs=Schema([TensorSpec(np.dtype("float32"), (-1, len(version.classes)))]),
    )


def check_same(module: "nn.Module", loaded: Any, images: Pixels) -> None:
    """Compare probabilities of the loaded and the trained model at several batch sizes.

    Raises :class:`TrainingError` when a probability differs by more than :data:`_SAME`.
    """
    trained = predictor(module)
    for rows in _TRIED_BATCHES:
        batch = np.array(images[:rows])
        difference = float(np.abs(loaded.predict(batch) - trained(batch)).max())
        if not difference <= _SAME:
            raise TrainingError(
                f"the registered model differs from the trained one by {difference:.2g} in a probability (batch of "
                f"{rows}; at most {_SAME:g} is allowed). It was not promoted; the trained weights are kept."
            )
