"""The format of models of the trainer `lightgbm`: trees in LightGBM's text, in MLflow's LightGBM flavor.

Plain MLflow can load and serve the model without Evergreen. See :class:`tasks.model_formats.base.ModelFormat`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from tasks.model_formats.lightgbm_trees import check_text
from tasks.model_formats.logged_models import unexpected_entry
from tasks.model_formats.table_models import RAW_PARTS, TableFlavor, foreign_code, is_raw, log_trees
from training.errors import DataError
from training.problems.base import Predict
from training.recipe import Recipe
from training.records import DatasetVersion, TrainedModel
from training.trainers.lightgbm.inspection import booster_of, predict_with

FLAVOR = "lightgbm"
SCORES_MANY_ROWS = True
MODEL_FILE = Path("model.lgb")
WEIGHTS_FILE: Path | None = None

_LOADER = "mlflow.lightgbm"
_CLASS = "lightgbm.basic.Booster"  # mlflow.lightgbm unpickles models of any other class
_KEYS = frozenset({"data", "lgb_version", "model_class", "serialization_format", "skops_trusted_types"})


@dataclass(frozen=True)
class _SavedBytes:
    """Stands for the module `mlflow.lightgbm`: saves a model, and then the bytes that the training wrote.

    LightGBM would write the parameters of a loaded model again.
    """

    content: bytes

    def save_model(self, path: str, **options: Any) -> None:
        """Save the model in the folder `path`; `options` are those of `mlflow.lightgbm.save_model`."""
        import mlflow.lightgbm

        mlflow.lightgbm.save_model(path=path, **options)
        (Path(path) / MODEL_FILE).write_bytes(self.content)


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
    saved = _SavedBytes(Path(trained.weights).read_bytes())
    flavor = TableFlavor(
        FLAVOR, saved, version, (str(MODEL_FILE),), lgb_model=model, serialization_format="skops"
    )
    return log_trees(run_id, version, flavor, _LOADER, metadata, FLAVOR)


def load(folder: Path) -> Predict:
    """A function from inputs to predictions, from a folder for which :func:`find_foreign` returns None."""
    import lightgbm

    return predict_with(lightgbm.Booster(model_file=folder / MODEL_FILE))


def find_foreign(folder: Path, flavors: Mapping[str, Any], metadata: Mapping[str, Any]) -> str | None:
    """Describe the first thing in a model's folder that Evergreen would not have written; None if nothing."""
    if set(flavors) != {"python_function", FLAVOR}:
        return f"its flavors are {', '.join(flavors)}"
    function, own = flavors["python_function"], flavors[FLAVOR]
    if extra := {key for key, value in own.items() if value} - _KEYS:
        return f"{FLAVOR} has {', '.join(sorted(extra))}"
    if own.get("data") != str(MODEL_FILE):
        return f"it is loaded from {own.get('data')}"
    if own.get("model_class") != _CLASS:
        return f"it is a {own.get('model_class')}"
    if not is_raw(function):
        return f"it is loaded by {function.get('loader_module')} from {function.get('data')}"
    wrong = foreign_code(folder, function, metadata.get("table"), FLAVOR)
    return wrong or unexpected_entry(folder, (str(MODEL_FILE), *RAW_PARTS)) or _wrong_model(folder)


def _wrong_model(folder: Path) -> str | None:
    file = folder / MODEL_FILE
    if file.is_symlink() or not file.is_file():
        return f"{MODEL_FILE} is no regular file"
    try:
        check_text(file)
    except DataError as error:
        return f"{MODEL_FILE}: {error}"
    return None
