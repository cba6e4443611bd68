"""The format of models of the trainer `torch`: a program of torch.export in MLflow's PyTorch flavor.

Plain MLflow can load and serve the program without Evergreen. See :class:`tasks.model_formats.base.ModelFormat`.
"""

import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tasks.model_formats.exportable import check_model
from tasks.model_formats.logged_models import log_with_flavor, output_schema, requirements, unexpected_entry
from tasks.model_formats.program import check_program
from tasks.model_formats.table_models import RAW_PARTS, TableFlavor, foreign_code, is_raw
from tasks.model_formats.tokenizer_file import EXTRA_FILES, TOKENIZER_FILE, tokenizer_digest
from training.data.manifest import TOKENIZER
from training.errors import DataError, EvergreenError, TrainingError
from training.plan import RunPlan
from training.problems.base import Predict, Predictions
from training.recipe import Recipe
from training.records import DatasetVersion, TrainedModel
from training.storage.files import digest_file
from training.trainers.network import serving

if TYPE_CHECKING:
    from mlflow.models import Model, ModelSignature
    from torch import nn

FLAVOR = "pytorch"
MODEL_FILE = Path("data") / "model.pt2"
WEIGHTS_FILE = EXTRA_FILES / "weights.safetensors"

_LOADER = "mlflow.pytorch"
_KEYS = frozenset({"config", "data", "env", "loader_module", "pickle_module_name", "python_version"})


def check_untrained(plan: RunPlan, recipe: Callable[[], Recipe], version: DatasetVersion) -> None:
    """Try torch.export on an untrained model; see :func:`tasks.model_formats.exportable.check_model`."""
    from training.problems import problem_named
    from training.trainers.network.inputs import model_shape

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

    `module` is like the result of :func:`training.trainers.network.serving.serving_module`. `example` needs several
    rows: with one row torch.export would fix the batch size at 1. An exported program can't be trained further, so
    the file `weights` is logged with it; docs/recipes.md shows how to load that file. A model on text takes token ids,
    and the tokenizer is logged with it (docs/text.md). Raises :class:`TrainingError`
    when the model can't be exported.
    """
    import mlflow.pytorch

    extra_files = [weights] if weights else []
    if version.text is not None:
        extra_files.append(str(Path(version.path) / TOKENIZER))
    exported = {
        "pytorch_model": module,
        "signature": _tensor_signature(version),
        "input_example": example,
        "serialization_format": "pt2",
        "extra_files": extra_files or None,
    }
    try:
        if version.has_images or version.text is not None:
            needed = requirements("torch", "numpy")
            return log_with_flavor(
                run_id, version, _OnCpus(), _LOADER, metadata, pip_requirements=needed, **exported
            )
        files = (MODEL_FILE.parts[0], WEIGHTS_FILE.parts[0])
        flavor = TableFlavor(FLAVOR, mlflow.pytorch, version, files, **exported)
        needed = requirements("torch", "numpy", "pandas")
        return log_with_flavor(
            run_id, version, flavor, _LOADER, metadata, pip_requirements=needed, validate_serving_input=False
        )
    except Exception as error:
        if _is_of_export(error) and not isinstance(error, EvergreenError):
            raise TrainingError(
                f"the recipe's model can't be exported by torch.export ({error}). Keep data-dependent control flow "
                "out of its forward pass."
            ) from error
        raise


class _OnCpus:
    """MLflow's PyTorch flavor for programs of torch.export, whose weights stay on CPUs.

    On a machine with GPUs, MLflow's Python function would ask for a program on a GPU, and refuse this one.
    """

    def save_model(self, path: str, mlflow_model: "Model", **options: Any) -> None:
        """Save the program in the folder `path`; the Python function then uses CPUs on any machine."""
        import mlflow.pytorch

        mlflow.pytorch.save_model(path=path, mlflow_model=mlflow_model, **options)
        mlflow_model.flavors["python_function"]["config"] = {"device": "cpu"}
        mlflow_model.save(str(Path(path) / "MLmodel"))


def load(folder: Path) -> Predict:
    """A function from inputs to predictions, from a folder for which :func:`find_foreign` returns None."""
    import torch

    # As mlflow.pytorch.load_model does, whose import takes 5 s where Lightning is installed.
    program = torch.export.load(folder / MODEL_FILE).module()

    def predict(inputs: npt.NDArray[Any]) -> Predictions:
        with torch.no_grad():
            predictions: Predictions = program(torch.from_numpy(np.asarray(inputs))).numpy()
        return predictions

    return predict


def _is_of_export(error: Exception) -> bool:
    """Whether `error` was raised inside torch.export, which also raises built-in exception types."""
    frames = traceback.extract_tb(error.__traceback__)
    return any("torch/export/" in frame.filename for frame in frames)


def _tensor_signature(version: DatasetVersion) -> "ModelSignature":
    """The signature by which MLflow exports the program: tensors with a dynamic number of rows."""
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    kind = (
        np.dtype("uint8") if version.has_images else np.dtype("float32" if version.text is None else "int64")
    )
    return ModelSignature(
        inputs=Schema([TensorSpec(kind, (-1, *version.shape))]), outputs=output_schema(version)
    )


def find_foreign(folder: Path, flavors: Mapping[str, Any], metadata: Mapping[str, Any]) -> str | None:
    """Describe the first thing in a model's folder that Evergreen would not have written; None if nothing."""
    if set(flavors) != {"python_function", FLAVOR}:
        return f"its flavors are {', '.join(flavors)}"
    function, own = flavors["python_function"], flavors[FLAVOR]
    parts = (MODEL_FILE.parts[0], EXTRA_FILES.name)
    if is_raw(function):
        wrong = foreign_code(folder, function, metadata.get("table"), FLAVOR) or unexpected_entry(
            folder, (*parts, *RAW_PARTS)
        )
    else:
        wrong = _wrong_function(function) or unexpected_entry(folder, parts)
    extra = (WEIGHTS_FILE, *((TOKENIZER_FILE,) if tokenizer_digest(metadata) else ()))
    return (
        wrong
        or _wrong_flavor(own, extra)
        or _wrong_files(folder, extra)
        or _wrong_tokenizer(folder, metadata)
    )


def _wrong_function(function: Mapping[str, Any]) -> str | None:
    """What is wrong with the Python function of a model that takes tensors: images, encoded columns or token ids."""
    if function.get("loader_module") != _LOADER or function.get("data") != MODEL_FILE.parent.name:
        return f"it is loaded by {function.get('loader_module')} from {function.get('data')}"
    if extra := {key for key, value in function.items() if value} - _KEYS:
        return f"python_function has {', '.join(sorted(extra))}"
    return None


def _wrong_flavor(own: Mapping[str, Any], extra: tuple[Path, ...]) -> str | None:
    if own.get("code"):
        return "it brings code"
    if own.get("model_data") != MODEL_FILE.parent.name:
        return f"it is loaded from {own.get('model_data')}"
    allowed = [{"path": str(file)} for file in extra]
    if any(entry not in allowed for entry in own.get("extra_files") or []):
        return f"it names other extra files than {' and '.join(map(str, extra))}"
    return None


def _wrong_files(folder: Path, extra: tuple[Path, ...]) -> str | None:
    for subfolder, allowed in (
        (MODEL_FILE.parent, {MODEL_FILE.name}),
        (EXTRA_FILES, {file.name for file in extra}),
    ):
        names = sorted(path.name for path in (folder / subfolder).glob("*"))
        if not set(names) <= allowed:
            return f"{subfolder} holds {', '.join(names)}"
    for file in extra:
        if (folder / file).is_symlink() or (folder / EXTRA_FILES).is_symlink():
            return f"{file} is no regular file"
    program = folder / MODEL_FILE
    if program.is_symlink() or not program.is_file():
        return f"{MODEL_FILE} is no regular file"
    try:
        check_program(program)
    except DataError as error:
        return f"{MODEL_FILE}: {error}"
    return None


def _wrong_tokenizer(folder: Path, metadata: Mapping[str, Any]) -> str | None:
    digest = tokenizer_digest(metadata)
    if digest and not (
        (folder / TOKENIZER_FILE).is_file() and digest_file(folder / TOKENIZER_FILE) == digest
    ):
        return f"{TOKENIZER_FILE} is missing or not the file that was registered"
    return None
