"""Recipe for MNIST (70,000 grey handwritten digits, 28x28 pixels): ResNet-18 with a one-channel stem."""

from typing import TYPE_CHECKING

from evergreen import Augmentation, GateSettings, IdxFiles, ImageShape, Recipe, Settings, TrainingSettings

if TYPE_CHECKING:
    from torch import nn


def resnet18(shape: ImageShape, classes: int) -> "nn.Module":
    """torchvision's ResNet-18, whose first convolution has as many input channels as the images."""
    from torch import nn
    from torchvision import models

    model: nn.Module = models.resnet18(num_classes=classes)
    model.conv1 = nn.Conv2d(shape[0], 64, kernel_size=7, stride=2, padding=3, bias=False)
    return model


recipe = Recipe(
    name="mnist",
    summary="MNIST, ResNet-18 with a one-channel stem",
    source=IdxFiles("MNIST"),
    build_model=resnet18,
    augmentation=Augmentation(shift=2, rotation=8),
    settings=Settings(
        training=TrainingSettings(epochs=3, global_batch_size=128, learning_rate=2e-3),
        gate=GateSettings(floor=0.98),
    ),
)
