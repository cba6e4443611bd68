"""The guides' script with Lightning on Ray Train (P17-lightning), written from their description.

A LightningModule, `DataLoader`s without a sampler, Lightning's `Trainer` with Ray's strategy, environment and report
callback, which saves Lightning's checkpoint after each epoch.
"""

import time
from typing import Any

from benchmarks.baselines.guides_training import loaders, resnet, write_clock


def train_loop_per_worker(config: dict[str, Any]) -> None:
    """What each worker runs."""
    import lightning.pytorch as pl
    import ray.train.lightning
    import torch
    from torch import nn

    torch.set_num_threads(1)

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.criterion = resnet(), nn.CrossEntropyLoss()

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.model(images)
            return logits

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            images, labels = batch
            loss: torch.Tensor = self.criterion(self(images), labels)
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
            images, labels = batch
            logits = self(images)
            self.log("loss", self.criterion(logits, labels), sync_dist=True)
            self.log("accuracy", (logits.argmax(1) == labels).float().mean(), sync_dist=True)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=config["learning_rate"], weight_decay=1e-2)

    class Clock(pl.Callback):
        def __init__(self) -> None:
            self.ends: list[float] = []
            self.rows = 0

        def on_train_batch_end(self, *arguments: Any) -> None:
            batch = arguments[3]
            self.rows += len(batch[1]) if self.ends else 0

        def on_train_epoch_end(self, *_: Any) -> None:
            self.ends.append(time.time())

    clock = Clock()
    trainer = pl.Trainer(
        max_epochs=config["epochs"],
        devices="auto",
        accelerator="cpu",
        strategy=ray.train.lightning.RayDDPStrategy(),
        plugins=[ray.train.lightning.RayLightningEnvironment()],
        callbacks=[ray.train.lightning.RayTrainReportCallback(), clock],
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
        num_sanity_val_steps=0,
    )
    trainer = ray.train.lightning.prepare_trainer(trainer)
    train, validate = loaders(config)
    trainer.fit(Classifier(), train, validate)
    metrics = {name: float(trainer.callback_metrics[name]) for name in ("loss", "accuracy")}
    write_clock(config, clock.ends, clock.rows, metrics)
