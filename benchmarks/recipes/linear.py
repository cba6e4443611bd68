"""A model of one layer, whose computation takes almost no time."""

from typing import TYPE_CHECKING

from evergreen import IdxFiles, ImageShape, Recipe

if TYPE_CHECKING:
    from torch import nn


def build_model(shape: ImageShape, classes: int) -> "nn.Module":
    """A linear classifier."""
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))


recipe = Recipe(
    "bench-linear", "one layer on images of a benchmark", IdxFiles("MNIST"), build_model=build_model
)
