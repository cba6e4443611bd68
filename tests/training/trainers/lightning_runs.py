"""Small trainings by Lightning."""

from pathlib import Path

# Random numbers in each batch and each step, a state that changes after the step (part of the weights), and a learning
# rate that depends on the validation of each epoch.
MODULE = """
import lightning as L
import torch
from torch import nn
from torch.nn import functional


class Digit(L.LightningModule):
    def __init__(self, features, classes):
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(features, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(32, classes),
        )

        self.register_buffer("average", torch.zeros(()))

    def forward(self, images):
        return self.layers(images)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        images, labels = batch
        return images + 0.1 * torch.randn_like(images), labels

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.average.mul_(0.9).add_(0.1 * self.layers[1].weight.mean())

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = functional.cross_entropy({call}(images), labels)
        self.log("own_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        self.log("val_loss", functional.cross_entropy(self(images), labels), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=5e-3)
        {schedule}
"""
PLATEAU = """scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}"""
EACH_STEP = """scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=5e-3, total_steps=int(self.trainer.estimated_stepping_batches)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}"""
NUMPY = """import numpy as np
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5 * (1 + np.cos(epoch / 3)))
        return {"optimizer": optimizer, "lr_scheduler": scheduler}"""
RECIPE = """
from evergreen import Augmentation, Digits, Lightning, Recipe

def build_module(shape, outputs):
    from {module} import Digit
    return Digit(shape[0] * shape[1] * shape[2], outputs)

recipe = Recipe(
    "lit", "for a test", Digits(), trainer=Lightning(build_module, epochs=3), augmentation=Augmentation(shift=1)
)
"""


# Draws random numbers for each batch, and counts the batches; the noise depends on the count.
DATAMODULE = """

class Noise(L.LightningDataModule):
    def __init__(self):
        super().__init__()
        self.batches = 0

    def train_dataloader(self):
        raise RuntimeError("Evergreen has the rows")

    val_dataloader = train_dataloader

    def on_after_batch_transfer(self, batch, dataloader_idx):
        images, labels = batch
        if self.trainer.training:
            self.batches += 1
            images = images + 0.01 * self.batches * torch.randn_like(images)
        return images, labels

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state):
        self.batches = state["batches"]
"""


def write_datamodule(folder: Path) -> str:
    """Write a recipe with a LightningModule and a LightningDataModule."""
    recipe = write_lightning(folder)
    module = Path(recipe).with_name("lit_module.py")
    module.write_text(module.read_text() + DATAMODULE)
    text = Path(recipe).read_text()
    build = "\ndef build_datamodule():\n    from lit_module import Noise\n    return Noise()\n\nrecipe ="
    text = text.replace("\nrecipe =", build).replace(
        "Lightning(build_module,", "Lightning(build_module, build_datamodule,"
    )
    Path(recipe).write_text(text)
    return recipe


def write_lightning(folder: Path, schedule: str = PLATEAU, call: str = "self") -> str:
    """Write a recipe and its LightningModule; `call` is how `training_step` calls the network."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lit_module.py").write_text(MODULE.replace("{call}", call).replace("{schedule}", schedule))
    (folder / "lit.py").write_text(RECIPE.replace("{module}", "lit_module"))
    return str(folder / "lit.py")


def changed(recipe: str, *changes: tuple[str, str]) -> str:
    """Replace parts of the text of a recipe's LightningModule; returns the recipe's path."""
    file = Path(recipe).with_name("lit_module.py")
    text = file.read_text()
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    file.write_text(text)
    return recipe
