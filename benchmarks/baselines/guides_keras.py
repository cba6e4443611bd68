"""The guides' script with a Keras model on torch, on Ray Train (P17-keras), written from their description.

On this backend a Keras model is a `torch.nn.Module`: `prepare_model` wraps the model, and the loop is torch's. AdamW is
fused, as in Evergreen.
"""

import os
from typing import Any

from benchmarks.baselines.guides_training import train_in_torch


def train_loop_per_worker(config: dict[str, Any]) -> None:
    """What each worker runs."""
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    from torch import nn

    from benchmarks.recipes.keras_resnet import build_model

    keras.config.set_image_data_format("channels_last")

    class ChannelsFirst(nn.Module):
        """The Keras model, for the images of the `DataLoader`."""

        def __init__(self) -> None:
            super().__init__()
            with keras.device("cpu"):
                self.model = build_model((28, 28, 1), 10)

        def forward(self, images: Any) -> Any:
            return self.model(images.permute(0, 2, 3, 1), training=self.training)

    train_in_torch(config, ChannelsFirst(), fused=True)
