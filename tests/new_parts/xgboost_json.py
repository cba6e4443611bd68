"""A new model format for a test: XGBoost's trees as JSON, beside the UBJ file that the training wrote."""

import shutil
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
MODEL_FILE = Path("model.json")
WEIGHTS_FILE: Path | None = Path("model.ubj")

_LOADER = "mlflow.xgboost"
_OWN = {"data": MODEL_FILE.name, "model_class": "xgboost.core.Booster", "model_format": "json"}


class _BothFiles:
    """Saves the model as MLflow's module does, and the file of the training beside it."""

    def __init__(self, weights: str) -> None:
        self.weights = weights

    def save_model(self, path: str, **options: Any) -> None:
        import mlflow.xgboost

        mlflow.xgboost.save_model(path=path, **options)
        shutil.copy(self.weights, Path(path, "model.ubj"))


def log_model(
    run_id: str,
    recipe: Recipe,
    version: DatasetVersion,
    trained: TrainedModel,
    example: npt.NDArray[Any],
    metadata: dict[str, Any],
) -> str:
    """See :class:`tasks.model_formats.base.ModelFormat`."""
    flavor = TableFlavor(
        FLAVOR,
        _BothFiles(trained.weights),
        version,
        ("model.json", "model.ubj"),
        xgb_model=booster_of(trained),
        model_format="json",
    )
    return log_trees(run_id, version, flavor, _LOADER, metadata, FLAVOR)


def load(folder: Path) -> Predict:
    """See :class:`tasks.model_formats.base.ModelFormat`."""
    import xgboost

    return predict_with(xgboost.Booster(model_file=folder / MODEL_FILE))


def find_foreign(folder: Path, flavors: Mapping[str, Any], metadata: Mapping[str, Any]) -> str | None:
    """See :class:`tasks.model_formats.base.ModelFormat`."""
    if set(flavors) != {"python_function", FLAVOR} or not is_raw(flavors["python_function"]):
        return f"its flavors are {', '.join(flavors)}"
    own = {key: value for key, value in flavors[FLAVOR].items() if value and key != "xgb_version"}
    if own != _OWN:
        return f"{FLAVOR} has {own}"
    wrong = foreign_code(folder, flavors["python_function"], metadata.get("table"), FLAVOR)
    return wrong or unexpected_entry(folder, ("model.json", "model.ubj", *RAW_PARTS)) or _wrong_model(folder)


def _wrong_model(folder: Path) -> str | None:
    """The JSON file must be what XGBoost writes for the UBJ file, whose content is checked without XGBoost."""
    import xgboost

    for name in ("model.json", "model.ubj"):
        if (folder / name).is_symlink() or not (folder / name).is_file():
            return f"{name} is no regular file"
    try:
        check_trees(folder / "model.ubj")
    except DataError as error:
        return f"model.ubj: {error}"
    if (
        xgboost.Booster(model_file=folder / "model.ubj").save_raw("json")
        != (folder / MODEL_FILE).read_bytes()
    ):
        return "model.json has other trees than model.ubj"
    return None
