"""The serving model: it maps inputs to predictions and includes the conversion of the inputs, such as normalisation."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from training.checkpoints.weights import load_weights, weights_digest
from training.problems import problem_named
from training.problems.base import Predict, Predictions
from training.recipe import Recipe
from training.records import DatasetVersion, TrainedModel

if TYPE_CHECKING:
    from torch import nn

_LATENCY_TRIES = 20


def serving_module(recipe: Recipe, version: DatasetVersion, trained: TrainedModel) -> "nn.Module":
    """Build the serving model from the weights of a finished training, on the CPU, in evaluation mode.

    It maps uint8 images (rows, channels, height, width), or the encoded columns of a table, float32 (rows, columns), to
    float32 predictions: probabilities (rows, classes), or numbers (rows,) of a regression. Once exported, it does not
    need Evergreen. Raises :class:`training.errors.DataError` if the weights file is not what training wrote.
    """
    return with_inputs(_with_weights(recipe, version, trained), version)


def trained_module(recipe: Recipe, version: DatasetVersion, trained: TrainedModel) -> "nn.Module":
    """The recipe's own module with the weights of a finished training. Raises the errors of :func:`serving_module`."""
    from training.trainers.network.modules import recipe_module

    return recipe_module(_with_weights(recipe, version, trained))


def _with_weights(recipe: Recipe, version: DatasetVersion, trained: TrainedModel) -> "nn.Module":
    from training.trainers.network.inputs import model_shape
    from training.trainers.network.modules import build_module, recipe_module

    outputs = problem_named(version.problem).outputs(version)
    module = build_module(recipe, model_shape(version), outputs)
    recipe_module(module).load_state_dict(load_weights_of(trained))
    return module


def with_inputs(module: "nn.Module", version: DatasetVersion) -> "nn.Module":
    """A recipe's model between the conversion of its inputs and that of its output to predictions."""
    import torch
    from torch import nn

    from training.trainers.network.inputs import encoder_of

    problem = problem_named(version.problem)

    class Serving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.normalise = encoder_of(version)
            self.model = module

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return problem.torch_predictions(self.model(self.normalise(inputs)), version)

    return Serving().eval()


def load_weights_of(trained: TrainedModel) -> "dict[str, object]":
    """Load the weights of a finished training and check their digest.

    Raises :class:`training.errors.DataError` if the file is not what training wrote.
    """
    from pathlib import Path

    from training.errors import DataError

    weights = load_weights(Path(trained.weights))
    if weights_digest(weights) != trained.weights_digest:
        raise DataError(
            f"{trained.weights}: not the weights that training wrote (digest differs). Remove "
            f"{Path(trained.weights).parent} and run again: they are taken from the checkpoint."
        )
    return dict(weights)


def predictor(module: "nn.Module", rows: int) -> Predict:
    """A function that maps inputs to predictions by the serving model `module`, with at most `rows` rows at a time."""
    import torch

    def predict(inputs: npt.NDArray[Any]) -> Predictions:
        parts = []
        with torch.inference_mode():
            for start in range(0, len(inputs), rows):
                batch = torch.from_numpy(np.array(inputs[start : start + rows]))
                parts.append(module(batch).numpy())
        return np.concatenate(parts)

    return predict
