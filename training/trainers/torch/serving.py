"""The serving model: it maps uint8 images to class probabilities and includes the normalisation."""

import time
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from training.checkpoints.weights import load_weights, weights_digest
from training.data.images.decoding import Pixels
from training.recipe import Recipe
from training.records import DatasetVersion, TrainedModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

Probabilities = npt.NDArray[np.float32]
Predict = "Callable[[Pixels], Probabilities]"

_BATCH_ROWS = 512
_LATENCY_TRIES = 20


def serving_module(recipe: Recipe, version: DatasetVersion, trained: TrainedModel) -> "nn.Module":
    """Build the serving model: normalisation, the trained model and a softmax, on the CPU, in evaluation mode.

    It maps uint8 images (rows, channels, height, width) to float32 probabilities (rows, classes). Once exported, it
    does not need Evergreen. Raises :class:`training.errors.DataError` if the weights file is not what training wrote.
    """
    import torch
    from torch import nn

    from training.data.images.augmentation import normaliser
    from training.trainers.torch.replica import build_module

    module = build_module(recipe, version.shape, len(version.classes))
    module.load_state_dict(load_weights_of(trained))

    class Serving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.normalise = normaliser(version.mean, version.std)
            self.model = module

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return torch.softmax(self.model(self.normalise(images)), dim=1)

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


def predictor(module: "nn.Module") -> "Callable[[Pixels], Probabilities]":
    """A function that maps uint8 images to probabilities with `module`, in batches and without gradients."""
    import torch

    def predict(images: Pixels) -> Probabilities:
        parts = []
        with torch.inference_mode():
            for start in range(0, len(images), _BATCH_ROWS):
                batch = torch.from_numpy(np.array(images[start : start + _BATCH_ROWS]))
                parts.append(module(batch).numpy())
        return np.concatenate(parts)

    return predict


def latency_ms(predict: "Callable[[Pixels], Probabilities]", images: Pixels) -> float:
    """Median latency in milliseconds of `predict` on a batch of one image."""
    one = np.array(images[:1])
    predict(one)  # warm-up: the first call includes set-up
    taken = []
    for _ in range(_LATENCY_TRIES):
        began = time.perf_counter()
        predict(one)
        taken.append(time.perf_counter() - began)
    return float(np.median(taken) * 1000)
