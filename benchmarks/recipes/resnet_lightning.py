"""ResNet-18 for grey images as a LightningModule, with the guides' optimizer."""

from typing import TYPE_CHECKING

from evergreen import IdxFiles, ImageShape, Lightning, Recipe
from training.recipes.mnist import resnet18

if TYPE_CHECKING:
    from lightning import LightningModule


def build_module(shape: ImageShape, classes: int) -> "LightningModule":
    """The module."""
    import lightning.pytorch as pl
    import torch
    from torch.nn import functional

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = resnet18(shape, classes)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.model(images)
            return logits

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            images, labels = batch
            loss = functional.cross_entropy(self(images), labels)
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=1e-2)

    return Classifier()


recipe = Recipe("bench-resnet-lightning", source=IdxFiles("MNIST"), trainer=Lightning(build_module))
