"""What other steps read from a training with TensorFlow; see :class:`training.trainers.base.Inspection`."""

from typing import TYPE_CHECKING, Any

import numpy as np

from training.trainers.network.inspection import importances, model_digest

if TYPE_CHECKING:
    import numpy.typing as npt

    from training.problems.base import Predict, Predictions
    from training.recipe import Recipe
    from training.records import DatasetVersion, TrainedModel

__all__ = ["importances", "model_digest", "predict_with", "predictor"]

_BATCH_ROWS = 512


def predictor(recipe: "Recipe", version: "DatasetVersion", trained: "TrainedModel") -> "Predict":
    """A function that maps inputs to predictions, with the weights of a finished training.

    Raises :class:`training.errors.DataError` if the weights file is not what training wrote.
    """
    from training.trainers.tensorflow.serving import serving_model

    return predict_with(serving_model(recipe, version, trained))


def predict_with(model: Any) -> "Predict":
    """A function that maps inputs to predictions with the serving model `model`, in batches."""

    def predict(inputs: "npt.NDArray[Any]") -> "Predictions":
        parts = [
            np.asarray(model(np.asarray(inputs[start : start + _BATCH_ROWS]), training=False))
            for start in range(0, len(inputs), _BATCH_ROWS)
        ]
        return np.concatenate(parts)

    return predict
