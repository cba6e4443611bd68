"""Recipe for the data and the network of recipe `digits`, as a LightningModule that Lightning's Trainer trains."""

from typing import TYPE_CHECKING

from evergreen import (
    Augmentation,
    Digits,
    GateSettings,
    ImageShape,
    Lightning,
    Recipe,
    ScalingSettings,
    Settings,
)
from training.recipes.digits import build_model

if TYPE_CHECKING:
    from lightning import LightningModule


def build_module(shape: ImageShape, classes: int) -> "LightningModule":
    """The network of recipe `digits`, trained by AdamW with one cycle of the learning rate."""
    import lightning
    import torch
    from torch.nn import functional

    class DigitClassifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = build_model(shape, classes)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.network(images)
            return logits

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            images, labels = batch
            return functional.cross_entropy(self(images), labels)

        def configure_optimizers(self) -> dict[str, object]:
            optimizer = torch.optim.AdamW(self.parameters())
            steps = int(self.trainer.estimated_stepping_batches)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    return DigitClassifier()


recipe = Recipe(
    name="digits-lightning",
    summary="scikit-learn's handwritten digits, a LightningModule",
    source=Digits(),
    trainer=Lightning(build_module, epochs=20, global_batch_size=64),
    augmentation=Augmentation(shift=1, rotation=10, scale=0.1),
    settings=Settings(scaling=ScalingSettings(num_workers=2), gate=GateSettings(floor=0.95)),
)
