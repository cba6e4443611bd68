"""Read predictions, digests and importances from files of XGBoost; see :class:`training.trainers.base.Inspection`."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from training.trainers.boosting.model_file import checked_content
from training.trainers.xgboost.trainer import check_installed

if TYPE_CHECKING:
    import numpy.typing as npt
    from xgboost import Booster

    from training.problems.base import Predict, Predictions
    from training.recipe import Recipe
    from training.records import DatasetVersion, TrainedModel


def predictor(recipe: "Recipe", version: "DatasetVersion", trained: "TrainedModel") -> "Predict":
    """A function from inputs to the predictions of a trained model. Raises the errors of :func:`booster_of`."""
    del recipe, version
    return predict_with(booster_of(trained))


def booster_of(trained: "TrainedModel") -> "Booster":
    """The model of a finished training.

    Raises :class:`DataError` if the file is not what the training wrote, and :class:`training.errors.SettingError` if
    XGBoost is not installed.
    """
    check_installed()
    from xgboost import Booster

    return Booster(model_file=bytearray(checked_content(trained)))


def predict_with(model: "Booster") -> "Predict":
    """A function from inputs to the predictions of `model`."""

    def predict(inputs: "npt.NDArray[Any]") -> "Predictions":
        predictions: Predictions = model.inplace_predict(np.asarray(inputs, np.float32))
        return predictions

    return predict


def model_digest(state: Mapping[str, Any], epoch: int) -> str:
    """Digest of the model of the first `epoch` rounds, from the state of a checkpoint at this or a later round."""
    from training.trainers.xgboost.boosting import first_rounds

    return sha256(first_rounds(state["booster"].numpy().tobytes(), epoch)).hexdigest()


def importances(model: Path) -> dict[str, float]:
    """Each column's share of XGBoost's total gain: the sum of the loss reductions by the splits on a column."""
    from xgboost import Booster

    # Trees have one number for each column; only linear models, which are not trained here, have several.
    gains = cast("dict[str, float]", Booster(model_file=model).get_score(importance_type="total_gain"))
    total = sum(gains.values())
    return {name: gain / total for name, gain in gains.items()} if total > 0 else {}
