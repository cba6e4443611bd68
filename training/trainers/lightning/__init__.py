"""The trainer `lightning`: a LightningModule, trained by Lightning's own Trainer."""
