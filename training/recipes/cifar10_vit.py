"""Recipe for CIFAR-10: torchvision's VisionTransformer with 4x4 patches, 12 layers, 8 heads and width 384."""

from typing import TYPE_CHECKING

from evergreen import Augmentation, Cifar10, GateSettings, ImageShape, Recipe, Settings, TrainingSettings

if TYPE_CHECKING:
    from torch import nn


def build_model(shape: ImageShape, classes: int) -> "nn.Module":
    """VisionTransformer (Dosovitskiy et al. 2021) with 14.3 million weights, randomly initialised."""
    from torchvision.models import VisionTransformer

    model: nn.Module = VisionTransformer(
        image_size=shape[1],
        patch_size=4,
        num_layers=12,
        num_heads=8,
        hidden_dim=384,
        mlp_dim=768,
        num_classes=classes,
    )
    return model


recipe = Recipe(
    name="cifar10-vit",
    summary="CIFAR-10, VisionTransformer with 12 layers of width 384",
    source=Cifar10(),
    build_model=build_model,
    augmentation=Augmentation(shift=4, flip=True),
    settings=Settings(
        training=TrainingSettings(
            epochs=10, global_batch_size=512, learning_rate=1e-3, weight_decay=1e-2, clip_norm=1.0
        ),
        gate=GateSettings(floor=0.3),
    ),
)
