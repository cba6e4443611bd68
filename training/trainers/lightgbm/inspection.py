"""What other steps read from the files of LightGBM; see :class:`training.trainers.base.Inspection`."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from training.trainers.boosting.model_file import checked_content
from training.trainers.lightgbm.trainer import check_installed

if TYPE_CHECKING:
    import numpy.typing as npt
    from lightgbm import Booster

    from training.problems.base import Predict, Predictions
    from training.recipe import Recipe
    from training.records import DatasetVersion, TrainedModel

_LARGEST = 1e300  # of a gain, so that sums stay finite


def predictor(recipe: "Recipe", version: "DatasetVersion", trained: "TrainedModel") -> "Predict":
    """A function from inputs to predictions, from the model of a finished training; see :func:`booster_of`."""
    del recipe, version
    return predict_with(booster_of(trained))


def booster_of(trained: "TrainedModel") -> "Booster":
    """The model of a finished training.

    Raises :class:`DataError` if the file is not what the training wrote, and :class:`training.errors.SettingError` if
    LightGBM is not installed.
    """
    check_installed()
    from training.trainers.lightgbm.text import model_of

    return model_of(checked_content(trained))


def predict_with(model: "Booster") -> "Predict":
    """A function from inputs to the predictions of `model`."""

    def predict(inputs: "npt.NDArray[Any]") -> "Predictions":
        predictions: Predictions = np.asarray(model.predict(np.asarray(inputs, np.float32)), np.float32)
        return predictions

    return predict


def model_digest(state: Mapping[str, Any], epoch: int) -> str:
    """Digest of the trees of the first `epoch` rounds; a later checkpoint holds them, too."""
    from training.trainers.lightgbm.boosting import first_rounds

    return sha256(first_rounds(state["booster"].numpy().tobytes(), epoch)).hexdigest()


def importances(model: Path) -> dict[str, float]:
    """Shares of LightGBM's gain: the sum, over the splits on a column, of how much the splits lower the loss."""
    from training.trainers.lightgbm.text import column_name, model_of

    booster = model_of(model.read_bytes())
    importance = np.minimum(booster.feature_importance("gain"), _LARGEST)  # a gain may be infinite
    gains = dict(zip(booster.feature_name(), map(float, importance), strict=True))
    total = sum(gains.values())
    return {column_name(name): gain / total for name, gain in gains.items() if gain} if total > 0 else {}
