"""ResNet-18 of Transformers for grey images, with the guides' optimizer."""

from typing import TYPE_CHECKING

from evergreen import IdxFiles, ImageShape, Recipe, Transformers

if TYPE_CHECKING:
    from torch import nn


def build_model(shape: ImageShape, classes: int) -> "nn.Module":
    """The model, with 11.2 million weights."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        num_channels=shape[0],
        hidden_sizes=[64, 128, 256, 512],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        num_labels=classes,
    )
    model: nn.Module = ResNetForImageClassification(config)
    return model


recipe = Recipe(
    "bench-resnet-transformers",
    source=IdxFiles("MNIST"),
    trainer=Transformers(
        build_model, learning_rate=1e-3, weight_decay=1e-2, lr_scheduler_type="constant_with_warmup"
    ),
)
