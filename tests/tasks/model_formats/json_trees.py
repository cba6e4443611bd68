"""A second format of XGBoost's models, with the same flavor of MLflow: JSON, from encoded columns."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow.xgboost
import numpy.typing as npt
from logged_before import encoded_signature
from xgboost import Booster

from tasks.model_formats.logged_models import log_with_flavor, unexpected_entry
from training.problems.base import Predict
from training.recipe import Recipe
from training.records import DatasetVersion, TrainedModel
from training.trainers.xgboost.inspection import booster_of, predict_with

FLAVOR = "xgboost"
MODEL_FILE = Path("model.json")
WEIGHTS_FILE: Path | None = None


def log_model(
    run_id: str,
    recipe: Recipe,
    version: DatasetVersion,
    trained: TrainedModel,
    example: npt.NDArray[Any],
    metadata: dict[str, Any],
) -> str:
    """See :class:`tasks.model_formats.base.ModelFormat`."""
    return log_with_flavor(
        run_id,
        version,
        mlflow.xgboost,
        "mlflow.xgboost",
        metadata,
        xgb_model=booster_of(trained),
        model_format="json",
        signature=encoded_signature(version),
        pip_requirements=["mlflow", "xgboost-cpu"],
    )


def find_foreign(folder: Path, flavors: Mapping[str, Any], metadata: Mapping[str, Any]) -> str | None:
    """See :class:`tasks.model_formats.base.ModelFormat`."""
    try:
        json.loads((folder / MODEL_FILE).read_text())
    except (OSError, ValueError) as error:
        return f"{MODEL_FILE}: {error}"
    return unexpected_entry(folder, (MODEL_FILE.name,))


def load(folder: Path) -> Predict:
    """See :class:`tasks.model_formats.base.ModelFormat`."""
    return predict_with(Booster(model_file=folder / MODEL_FILE))
