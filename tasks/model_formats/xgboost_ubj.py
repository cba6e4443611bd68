"""The format of models of the trainer `xgboost`: trees in XGBoost's UBJ, in MLflow's XGBoost flavor.

Plain MLflow can load and serve the model without Evergreen. See :class:`tasks.model_formats.base.ModelFormat`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from tasks.model_formats.logged_models import unexpected_entry
from tasks.model_formats.table_models import RAW_PARTS, TableFlavor, foreign_code, is_raw, log_trees
from tasks.model_formats.xgboost_trees import check_trees
from training.errors import DataError
from training.problems.base import Predict
from training.recipe import Recipe
from training.records import DatasetVersion, TrainedModel
from training.trainers.xgboost.inspection import booster_of, predict_with

FLAVOR = "xgboost"
SCORES_MANY_ROWS = True
MODEL_FILE = Path("model.ubj")
WEIGHTS_FILE: Path | None = None

_LOADER = "mlflow.xgboost"
_CLASS = "xgboost.core.Booster"  # mlflow.xgboost imports and calls any class that a model names
_KEYS = frozenset({"data", "model_class", "model_format", "xgb_version"})
_KEYS_OF_FUNCTION = frozenset({"data", "env", "loader_module", "python_version"})


def log_model(
    run_id: str,
    recipe: Recipe,
    version: DatasetVersion,
    trained: TrainedModel,
    example: npt.NDArray[Any],
    metadata: dict[str, Any],
) -> str:
    """Log the trained model under the run; returns the model's URI. Raises :class:`TrainingError` when that fails."""
    del recipe, example
    model = booster_of(trained)
    import mlflow.xgboost

    flavor = TableFlavor(
        FLAVOR, mlflow.xgboost, version, (str(MODEL_FILE),), xgb_model=model, model_format="ubj"
    )
    return log_trees(run_id, version, flavor, _LOADER, metadata, FLAVOR)


def load(folder: Path) -> Predict:
    """A function from inputs to predictions, from a folder for which :func:`find_foreign` returns None."""
    import xgboost

    return predict_with(xgboost.Booster(model_file=folder / MODEL_FILE))


def find_foreign(folder: Path, flavors: Mapping[str, Any], metadata: Mapping[str, Any]) -> str | None:
    """Describe the first thing in a model's folder that Evergreen would not have written; None if nothing."""
    if set(flavors) != {"python_function", FLAVOR}:
        return f"its flavors are {', '.join(flavors)}"
    function, own = flavors["python_function"], flavors[FLAVOR]
    if extra := {key for key, value in own.items() if value} - _KEYS:
        return f"{FLAVOR} has {', '.join(sorted(extra))}"
    if own.get("data") != str(MODEL_FILE):
        return f"it is loaded from {own.get('data')}"
    if own.get("model_class") != _CLASS or own.get("model_format") != "ubj":
        return f"it is a {own.get('model_class')} in the format {own.get('model_format')}"
    if is_raw(function):
        wrong = foreign_code(folder, function, metadata.get("table"), FLAVOR)
        return wrong or unexpected_entry(folder, (str(MODEL_FILE), *RAW_PARTS)) or _wrong_model(folder)
    return _wrong_function(function) or unexpected_entry(folder, (str(MODEL_FILE),)) or _wrong_model(folder)


def _wrong_function(function: Mapping[str, Any]) -> str | None:
    """What is wrong with the Python function of a model that takes encoded columns, of an earlier version."""
    if extra := {key for key, value in function.items() if value} - _KEYS_OF_FUNCTION:
        return f"python_function has {', '.join(sorted(extra))}"
    if function.get("loader_module") != _LOADER or function.get("data") != str(MODEL_FILE):
        return f"it is loaded by {function.get('loader_module')} from {function.get('data')}"
    return None


def _wrong_model(folder: Path) -> str | None:
    file = folder / MODEL_FILE
    if file.is_symlink() or not file.is_file():
        return f"{MODEL_FILE} is no regular file"
    try:
        check_trees(folder / MODEL_FILE)
    except DataError as error:
        return f"{MODEL_FILE}: {error}"
    return None
