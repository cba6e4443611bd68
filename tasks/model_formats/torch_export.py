"""The format of models of the trainer `torch`: a program of torch.export in MLflow's PyTorch flavor.

Plain MLflow can load and serve the program without Evergreen. See :class:`tasks.model_formats.base.ModelFormat`.
"""

import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import version as installed
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tasks.model_formats.logged_models import column_signature, new_entry, output_schema
from tasks.model_formats.program import check_program
from training.errors import DataError, TrainingError, classify
from training.plan import RunPlan
from training.problems.base import Predict
from training.recipe import Recipe
from training.records import DatasetVersion, TrainedModel
from training.trainers.torch import serving

if TYPE_CHECKING:
    from mlflow.models import Model, ModelSignature
    from torch import nn

FLAVOR = "pytorch"
MODEL_FILE = Path("data") / "model.pt2"
WEIGHTS_FILE = Path("extra_files") / "weights.safetensors"

_LOADER = "mlflow.pytorch"
_KEYS = frozenset({"config", "data", "env", "loader_module", "pickle_module_name", "python_version"})


def predictor(recipe: Recipe, version: DatasetVersion, trained: TrainedModel) -> Predict:
    """A function from inputs to predictions, from the weights of a finished training.

    Raises :class:`DataError` if the weights file is not what training wrote.
    """
    return serving.predictor(serving.serving_module(recipe, version, trained))


def check_untrained(plan: RunPlan, recipe: Callable[[], Recipe], version: DatasetVersion) -> None:
    """Try torch.export on an untrained model; see :func:`tasks.checks.model_checks.check_model`."""
    from tasks.checks.model_checks import check_model
    from training.problems import problem_named
    from training.trainers.torch.inputs import model_shape

    check_model(plan, recipe, model_shape(version), problem_named(version.problem).outputs(version))


def log_model(
    run_id: str,
    recipe: Recipe,
    version: DatasetVersion,
    trained: TrainedModel,
    example: npt.NDArray[Any],
    metadata: dict[str, Any],
) -> str:
    """Export the trained model and log it under the run, with its weights; returns the model's URI.

    Raises :class:`TrainingError` when the model can't be exported.
    """
    module = serving.serving_module(recipe, version, trained)
    return log_serving_model(run_id, module, version, example, metadata, trained.weights)


def log_serving_model(
    run_id: str,
    module: "nn.Module",
    version: DatasetVersion,
    example: npt.NDArray[Any],
    metadata: dict[str, Any],
    weights: str | None = None,
) -> str:
    """Export `module` with torch.export and log it under the run; returns the model's URI.

    Inputs and outputs are those of :func:`training.trainers.torch.serving.serving_module`. `example` needs several
    rows: with one row torch.export would fix the batch size at 1. An exported program can't be trained further, so the
    file `weights` is logged with it; docs/recipes.md shows how to load that file. Raises :class:`TrainingError` when
    the model can't be exported.
    """
    import mlflow.pytorch
    from mlflow.models import Model

    try:
        # Not mlflow.pytorch.log_model: it needs a run that is active in this process, and then marks it FINISHED.
        info = Model.log(
            artifact_path=None,
            flavor=mlflow.pytorch if version.table is None else _TableFlavor(column_signature(version)),
            flavor_name=_LOADER,
            run_id=run_id,
            model_id=new_entry(run_id, version),
            pytorch_model=module,
            signature=_tensor_signature(version),
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


class _TableFlavor:
    """Saves a model on a table: MLflow exports by a signature of tensors, and then gets the signature of columns."""

    def __init__(self, signature: "ModelSignature"):
        self.signature = signature

    def save_model(self, path: str, mlflow_model: "Model", **options: Any) -> None:
        """Save the model in `path` as `mlflow.pytorch.save_model` does, with the signature of columns."""
        import mlflow.pytorch
        from mlflow.models.model import MLMODEL_FILE_NAME

        mlflow.pytorch.save_model(path=path, mlflow_model=mlflow_model, **options)
        # The example that MLflow has saved is a matrix, which the signature of columns would refuse.
        mlflow_model.saved_input_example_info = None  # type: ignore[assignment]  # as of a model without an example
        for name in ("input_example.json", "serving_input_example.json"):
            (Path(path) / name).unlink(missing_ok=True)
        mlflow_model.signature = self.signature
        mlflow_model.save(str(Path(path) / MLMODEL_FILE_NAME))


def _is_of_export(error: Exception) -> bool:
    """Whether `error` was raised inside torch.export, which also raises built-in exception types."""
    frames = traceback.extract_tb(error.__traceback__)
    return any("torch/export/" in frame.filename for frame in frames)


def _tensor_signature(version: DatasetVersion) -> "ModelSignature":
    """The signature by which MLflow exports the program: tensors, of which the number of rows is dynamic."""
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    kind = np.dtype("uint8") if version.table is None else np.dtype("float32")
    return ModelSignature(
        inputs=Schema([TensorSpec(kind, (-1, *version.shape))]), outputs=output_schema(version)
    )


def find_foreign(folder: Path, flavors: Mapping[str, Any]) -> str | None:
    """The first thing in a model's folder that Evergreen would not have written, as text, or None."""
    if set(flavors) != {"python_function", FLAVOR}:
        return f"its flavors are {', '.join(flavors)}"
    function = flavors["python_function"]
    if function.get("loader_module") != _LOADER or function.get("data") != MODEL_FILE.parent.name:
        return f"it is loaded by {function.get('loader_module')} from {function.get('data')}"
    if extra := {key for key, value in function.items() if value} - _KEYS:
        return f"python_function has {', '.join(sorted(extra))}"
    if flavors[FLAVOR].get("code"):
        return "it brings code"
    if flavors[FLAVOR].get("extra_files") not in (None, [], [{"path": str(WEIGHTS_FILE)}]):
        return f"it names other extra files than {WEIGHTS_FILE}"
    for expected in (MODEL_FILE, WEIGHTS_FILE):
        found = sorted(path.name for path in (folder / expected.parent).glob("*"))
        if found != [expected.name] and not (expected == WEIGHTS_FILE and not found):
            return f"{expected.parent} holds {', '.join(found)}"
    if (folder / WEIGHTS_FILE).is_symlink() or (folder / WEIGHTS_FILE.parent).is_symlink():
        return f"{WEIGHTS_FILE} is no regular file"
    program = folder / MODEL_FILE
    if program.is_symlink() or not program.is_file():
        return f"{MODEL_FILE} is no regular file"
    try:
        check_program(program)
    except DataError as error:
        return f"{MODEL_FILE}: {error}"
    return None
