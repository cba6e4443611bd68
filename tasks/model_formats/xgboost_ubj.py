"""The format of models of the trainer `xgboost`: trees in XGBoost's UBJ, in MLflow's XGBoost flavor.

Plain MLflow can load and serve the model without Evergreen. See :class:`tasks.model_formats.base.ModelFormat`.
"""

import hashlib
from collections.abc import Mapping
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.model_formats.logged_models import column_signature, new_entry
from tasks.model_formats.trees import check_trees
from training.errors import DataError, TrainingError, classify
from training.problems.base import Predict, Predictions
from training.recipe import Recipe
from training.records import DatasetVersion, TrainedModel
from training.trainers.xgboost.trainer import check_installed

FLAVOR = "xgboost"
MODEL_FILE = Path("model.ubj")
WEIGHTS_FILE: Path | None = None

_LOADER = "mlflow.xgboost"
_CLASS = "xgboost.core.Booster"  # mlflow.xgboost imports and calls whatever class a model names
_KEYS = {
    "python_function": frozenset({"data", "env", "loader_module", "python_version"}),
    FLAVOR: frozenset({"data", "model_class", "model_format", "xgb_version"}),
}
_FILES = frozenset(
    {
        "MLmodel",
        "conda.yaml",
        "python_env.yaml",
        "requirements.txt",
        "input_example.json",
        "serving_input_example.json",
        "registered_model_meta",  # MLflow writes it beside a downloaded version
        str(MODEL_FILE),
    }
)


def predictor(recipe: Recipe, version: DatasetVersion, trained: TrainedModel) -> Predict:
    """A function from inputs to predictions, from the model of a finished training.

    Raises :class:`DataError` if the file is not what the training wrote, and :class:`training.errors.SettingError` if
    XGBoost is not installed.
    """
    del recipe, version
    model = _booster(_content(trained))

    def predict(inputs: npt.NDArray[Any]) -> Predictions:
        found: Predictions = model.inplace_predict(np.asarray(inputs, np.float32))
        return found

    return predict


def log_model(
    run_id: str,
    recipe: Recipe,
    version: DatasetVersion,
    trained: TrainedModel,
    example: npt.NDArray[Any],
    metadata: dict[str, Any],
) -> str:
    """Log the trained model under the run; returns the model's URI. Raises :class:`TrainingError` when that fails."""
    del recipe
    content = _content(trained)
    model = _booster(content)
    import mlflow.xgboost
    import pandas
    from mlflow.models import Model

    assert version.table is not None
    names = [column.name for column in version.table.columns]
    try:
        # Not mlflow.xgboost.log_model: it needs a run that is active in this process, and then marks it FINISHED.
        info = Model.log(
            artifact_path=None,
            flavor=mlflow.xgboost,
            run_id=run_id,
            model_id=new_entry(run_id, version),
            xgb_model=model,
            model_format="ubj",
            signature=column_signature(version),
            input_example=pandas.DataFrame(np.asarray(example, np.float64), columns=names),
            pip_requirements=_requirements(),
            metadata=metadata,
        )
    except Exception as error:
        if (known := classify(error)) is not None:
            raise known from error
        raise TrainingError(f"the model could not be logged: {type(error).__name__}: {error}") from error
    uri: str = info.model_uri
    return uri


def find_foreign(folder: Path, flavors: Mapping[str, Any]) -> str | None:
    """The first thing in a model's folder that Evergreen would not have written, as text, or None."""
    if set(flavors) != set(_KEYS):
        return f"its flavors are {', '.join(flavors)}"
    function, own = flavors["python_function"], flavors[FLAVOR]
    for name, keys in _KEYS.items():
        if extra := {key for key, value in flavors[name].items() if value} - keys:
            return f"{name} has {', '.join(sorted(extra))}"
    named = {str(flavor.get("data")) for flavor in (function, own)}
    if function.get("loader_module") != _LOADER or named != {str(MODEL_FILE)}:
        return f"it is loaded by {function.get('loader_module')} from {', '.join(sorted(named))}"
    if own.get("model_class") != _CLASS or own.get("model_format") != "ubj":
        return f"it is a {own.get('model_class')} in the format {own.get('model_format')}"
    for path in sorted(folder.iterdir()):
        if path.name not in _FILES:
            return f"it holds {path.name}"
        if path.is_symlink() or not path.is_file():
            return f"{path.name} is no regular file"
    if not (folder / MODEL_FILE).is_file():
        return f"it holds no {MODEL_FILE}"
    try:
        check_trees(folder / MODEL_FILE)
    except DataError as error:
        return f"{MODEL_FILE}: {error}"
    return None


def _content(trained: TrainedModel) -> bytes:
    """The bytes of the trained model. Raises :class:`DataError` if they are not what the training wrote."""
    try:
        content = Path(trained.weights).read_bytes()
    except OSError as error:
        raise DataError(f"{trained.weights}: can't be read ({error})") from error
    if hashlib.sha256(content).hexdigest() != trained.weights_digest:
        raise DataError(
            f"{trained.weights}: not the file that training wrote (its digest differs). Remove its folder and run the "
            "same command: training finishes again from its newest checkpoint."
        )
    return content


def _booster(content: bytes) -> Any:
    check_installed()
    import xgboost

    return xgboost.Booster(model_file=bytearray(content))


def _requirements() -> list[str]:
    """Pinned requirements of the logged model, with the installed distribution of XGBoost: with or without GPUs."""
    names = ("mlflow", *packages_distributions()["xgboost"], "numpy", "pandas")
    pinned = {name: distribution(name).version.partition("+")[0] for name in names}
    return [f"{name}=={version}" for name, version in pinned.items()]
