"""A model of one layer whose steps take 25 ms at least, so that a kill can hit a chosen step."""

import time
from typing import TYPE_CHECKING, Any

from evergreen import IdxFiles, ImageShape, Recipe

if TYPE_CHECKING:
    from torch import nn


def build_model(shape: ImageShape, classes: int) -> "nn.Module":
    """A linear classifier that sleeps 25 ms in each training step."""
    from torch import nn

    class Waiting(nn.Sequential):
        def forward(self, images: Any) -> Any:
            if self.training:
                time.sleep(0.025)
            return super().forward(images)  # type: ignore[no-untyped-call]

    return Waiting(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))


recipe = Recipe("bench-waiting", "a step takes 25 ms at least", IdxFiles("MNIST"), build_model=build_model)
