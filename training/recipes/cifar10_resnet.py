"""Recipe for CIFAR-10 (60,000 photographs of 32x32 pixels): ResNet-18 with a stem for small images."""

from typing import TYPE_CHECKING

from evergreen import Augmentation, Cifar10, GateSettings, ImageShape, Recipe, Settings, TrainingSettings

if TYPE_CHECKING:
    from torch import nn


def build_model(shape: ImageShape, classes: int) -> "nn.Module":
    """ResNet-18 (He et al. 2016) whose first convolution is 3x3 with stride 1, without the max pooling after it."""
    from torch import nn
    from torchvision import models

    model: nn.Module = models.resnet18(num_classes=classes)
    model.conv1 = nn.Conv2d(shape[0], 64, kernel_size=3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


recipe = Recipe(
    name="cifar10-resnet",
    summary="CIFAR-10, ResNet-18 with a stem for small images",
    source=Cifar10(),
    build_model=build_model,
    augmentation=Augmentation(shift=4, flip=True),
    settings=Settings(
        training=TrainingSettings(
            epochs=30,
            global_batch_size=128,
            optimizer="sgd",
            learning_rate=0.1,
            weight_decay=5e-4,
            label_smoothing=0.1,
        ),
        gate=GateSettings(floor=0.5),
    ),
)
