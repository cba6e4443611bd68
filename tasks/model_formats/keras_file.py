"""The format of models of the trainer `tensorflow`: a `.keras` file in MLflow's TensorFlow flavor.

Plain MLflow can load and serve the model without Evergreen. See :class:`tasks.model_formats.base.ModelFormat`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.model_formats.keras_config import check_keras_file
from tasks.model_formats.logged_models import log_with_flavor, output_schema, requirements, unexpected_entry
from training.errors import DataError, TrainingError
from training.plan import RunPlan
from training.problems.base import Predict
from training.recipe import Recipe
from training.records import DatasetVersion, TrainedModel
from training.storage.files import temporary_folder
from training.trainers.tensorflow.inspection import predict_with
from training.trainers.tensorflow.library import tensorflow_keras

FLAVOR = "tensorflow"
_DATA, _EXTRA = Path("data"), Path("extra_files")
MODEL_FILE = _DATA / "model.keras"
WEIGHTS_FILE = _EXTRA / "weights.safetensors"

_LOADER = "mlflow.tensorflow"
_MODULE, _SAVED_AS = "keras_module.txt", "save_format.txt"
# What MLflow reads from the two files beside the model: the module that it imports, and the name of the format.
_CONTENTS = {
    _MODULE: ("keras._tf_keras.keras", "keras.api._v2.keras", "tensorflow.keras", "keras"),
    _SAVED_AS: ("tf",),
}
_FUNCTION_KEYS = frozenset({"data", "env", "loader_module", "python_version"})
_OWN = {"data": str(_DATA), "model_type": "keras", "save_format": "tf"}
_OWN_KEYS = frozenset({*_OWN, "keras_version", "extra_files"})


def check_untrained(plan: RunPlan, recipe: Callable[[], Recipe], version: DatasetVersion) -> None:
    """Build the untrained model, and check that its file would be loaded. Raises :class:`TrainingError` otherwise."""
    from training.problems.objectives import objective_named
    from training.trainers.tensorflow.model import build_model
    from training.trainers.tensorflow.serving import with_inputs

    outputs = objective_named(version.problem).outputs(version)
    model = build_model(recipe(), version.shape, outputs)
    complete = version if version.std else version.model_copy(update={"mean": (0.0,), "std": (1.0,)})
    with temporary_folder("keras") as folder:
        file = folder / MODEL_FILE.name
        with_inputs(model, complete).save(file)
        try:
            check_keras_file(file)
        except DataError as error:
            raise TrainingError(
                f"recipe {plan.recipe.name}: its model would not be loaded again: {error}. Build it from Keras' own "
                "layers, without Lambda, layers of your own, regularizers and constraints."
            ) from error


def log_model(
    run_id: str,
    recipe: Recipe,
    version: DatasetVersion,
    trained: TrainedModel,
    example: npt.NDArray[Any],
    metadata: dict[str, Any],
) -> str:
    """Log the trained model under the run, with its weights for further training; returns the model's URI."""
    import mlflow.tensorflow
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    from training.trainers.tensorflow.serving import serving_model

    signature = ModelSignature(
        inputs=Schema([TensorSpec(np.dtype("uint8"), (-1, *version.shape))]), outputs=output_schema(version)
    )
    return log_with_flavor(
        run_id,
        version,
        mlflow.tensorflow,
        _LOADER,
        metadata,
        model=serving_model(recipe, version, trained),
        signature=signature,
        input_example=example,
        extra_files=[trained.weights],
        pip_requirements=requirements("tensorflow-cpu", "keras", "numpy"),
    )


def load(folder: Path) -> Predict:
    """A function from inputs to predictions, from a folder for which :func:`find_foreign` returns None."""
    keras = tensorflow_keras()
    return predict_with(keras.saving.load_model(folder / MODEL_FILE, compile=False, safe_mode=True))


def find_foreign(folder: Path, flavors: Mapping[str, Any], metadata: Mapping[str, Any]) -> str | None:
    """Describe the first thing in a model's folder that Evergreen would not have written; None if nothing."""
    del metadata
    if set(flavors) != {"python_function", FLAVOR}:
        return f"its flavors are {', '.join(flavors)}"
    return (
        _wrong_flavors(flavors["python_function"], flavors[FLAVOR])
        or unexpected_entry(folder, (_DATA.name, _EXTRA.name))
        or _wrong_files(folder)
    )


def _wrong_flavors(function: Mapping[str, Any], own: Mapping[str, Any]) -> str | None:
    if function.get("loader_module") != _LOADER or function.get("data") != str(_DATA):
        return f"it is loaded by {function.get('loader_module')} from {function.get('data')}"
    if extra := {key for key, value in function.items() if value} - _FUNCTION_KEYS:
        return f"python_function has {', '.join(sorted(extra))}"
    if extra := {key for key, value in own.items() if value} - _OWN_KEYS:
        return f"{FLAVOR} has {', '.join(sorted(extra))}"
    if wrong := [key for key, value in _OWN.items() if own.get(key) != value]:
        return f"{FLAVOR} has the {wrong[0]} {own.get(wrong[0])}"
    if any(entry != {"path": str(WEIGHTS_FILE)} for entry in own.get("extra_files") or []):
        return f"it names other extra files than {WEIGHTS_FILE}"
    return None


def _wrong_files(folder: Path) -> str | None:
    for subfolder, allowed in ((_DATA, {MODEL_FILE.name, *_CONTENTS}), (_EXTRA, {WEIGHTS_FILE.name})):
        paths = sorted((folder / subfolder).glob("*"))
        if (folder / subfolder).is_symlink() or any(
            path.is_symlink() or not path.is_file() for path in paths
        ):
            return f"{subfolder} holds something other than regular files"
        if {path.name for path in paths} != allowed:
            return f"{subfolder} holds {', '.join(path.name for path in paths)}"
    for name, allowed_texts in _CONTENTS.items():
        if (text := (folder / _DATA / name).read_bytes()) not in [
            allowed_text.encode() for allowed_text in allowed_texts
        ]:
            return f"{name} says {text[:80]!r}"
    try:
        check_keras_file(folder / MODEL_FILE)
    except DataError as error:
        return f"{MODEL_FILE}: {error}"
    return None
