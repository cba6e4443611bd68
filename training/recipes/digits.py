"""Recipe for scikit-learn's handwritten digits (1,797 real scans of 8x8 pixels): a small convolutional network."""

from typing import TYPE_CHECKING

from evergreen import (
    Augmentation,
    Digits,
    GateSettings,
    ImageShape,
    Recipe,
    ScalingSettings,
    Settings,
    TrainingSettings,
)

if TYPE_CHECKING:
    from torch import nn


def build_model(shape: ImageShape, classes: int) -> "nn.Module":
    """Three 3x3 convolutions with batch normalisation, global average pool, linear layer (about 95,000 weights)."""
    from torch import nn

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *block(shape[0], 32),
        *block(32, 64),
        nn.MaxPool2d(2),
        *block(64, 128),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, classes),
    )


recipe = Recipe(
    name="digits",
    summary="scikit-learn's handwritten digits, small convolutional network",
    source=Digits(),
    build_model=build_model,
    augmentation=Augmentation(shift=1, rotation=10, scale=0.1),
    settings=Settings(
        training=TrainingSettings(epochs=20, global_batch_size=64, learning_rate=5e-3),
        scaling=ScalingSettings(num_workers=2),
        gate=GateSettings(floor=0.95),
    ),
)
