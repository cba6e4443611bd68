"""The guides' training script on Ray Train (P1b, P17), written from their description.

A `DataLoader` over pictures with `ToTensor` and `Normalize`, made distributed by `prepare_data_loader`; the model
under `prepare_model`; after each epoch a validation, a `torch.save` of the weights and one `ray.train.report` with
metrics and checkpoint. The images come from local files, so that nothing is downloaded.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.baselines.images import read


def train_as_guides_do(
    raw: Path,
    learn: list[int],
    validate: list[int],
    folder: Path,
    epochs: int,
    script: ModuleType | None = None,
) -> dict[str, Any]:
    """Train on two workers; returns rows seen and the time at each epoch's end. Ray must be connected already.

    `script` has the function `train_loop_per_worker`, which each worker runs, by default a loop in plain torch; and
    `new_trainer`, if it needs another trainer of Ray Train than `TorchTrainer`.
    """
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    clock = folder / "clock.json"
    config = {
        "epochs": epochs,
        "batch_size_per_worker": 64,
        "learning_rate": 1e-3,
        "raw": str(raw),
        "learn": learn,
        "validate": validate,
        "clock": str(clock),
    }
    trainer = getattr(script, "new_trainer", TorchTrainer)(
        train_loop_per_worker=script.train_loop_per_worker if script else _train_loop_per_worker,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(name="guides", storage_path=str(folder / "ray")),
    )
    trainer.fit()
    measurements: dict[str, Any] = json.loads(clock.read_text())
    return measurements


def loaders(config: dict[str, Any]) -> Any:
    """A pair of `DataLoader`s: of the training rows, and of the validation rows; both of all workers' rows."""
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset, Subset
    from torchvision.transforms import Compose, Normalize, ToTensor

    images = read(Path(config["raw"]), "train")
    pixels, labels = np.array(images.pixels), images.labels.tolist()
    transform = Compose([ToTensor(), Normalize((0.5,), (0.5,))])

    class Pictures(Dataset[Any]):
        def __len__(self) -> int:
            return len(labels)

        def __getitem__(self, row: int) -> tuple[Any, int]:
            return transform(Image.fromarray(pixels[row])), labels[row]

    pictures, size = Pictures(), config["batch_size_per_worker"]
    train = DataLoader(Subset(pictures, config["learn"]), batch_size=size, shuffle=True)
    validate = DataLoader(Subset(pictures, config["validate"]), batch_size=size)
    return train, validate


def resnet() -> Any:
    """ResNet-18 for grey images and ten classes."""
    from torch import nn
    from torchvision.models import resnet18

    model = resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(1, 64, kernel_size=7, stride=2, padding=3, bias=False)
    return model


def _train_loop_per_worker(config: dict[str, Any]) -> None:
    train_in_torch(config, resnet())


def train_in_torch(config: dict[str, Any], model: Any, fused: bool = False) -> None:
    """Train `model`, a `torch.nn.Module` that maps images to logits, on this worker.

    The guides call AdamW without `fused`, as P1b does. P17 compares what surrounds a framework, so both sides of it
    have the same optimizer.
    """
    import ray.train.torch
    import torch

    torch.set_num_threads(1)
    model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config["learning_rate"], weight_decay=1e-2, fused=fused
    )

    def update(loss: Any) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    train_prepared(config, model, update, lambda metrics: report(model, metrics))


def train_prepared(
    config: dict[str, Any],
    model: Any,
    update: Callable[[Any], None],
    report_epoch: Callable[[dict[str, Any]], None],
) -> None:
    """Train a module that spans all workers: `update(loss)` ends a step, `report_epoch(metrics)` saves and reports."""
    import ray.train.torch
    from torch import nn

    prepare: Any = ray.train.torch.prepare_data_loader
    train, validate = map(prepare, loaders(config))
    criterion = nn.CrossEntropyLoss()
    ends, rows = [], 0
    for epoch in range(config["epochs"]):
        train.sampler.set_epoch(epoch)
        model.train()
        for images, labels in train:
            update(criterion(model(images), labels))
            rows += len(labels) if epoch else 0
        metrics = _validate(model, validate, criterion)
        report_epoch(metrics | {"epoch": epoch})
        ends.append(time.time())
    write_clock(config, ends, rows, metrics)


def write_clock(config: dict[str, Any], ends: list[float], rows: int, metrics: dict[str, float]) -> None:
    """Save, on the first worker, the time at each epoch's end, the rows of all epochs but the first, and metrics."""
    import ray.train

    if ray.train.get_context().get_world_rank() == 0:
        world = ray.train.get_context().get_world_size()
        Path(config["clock"]).write_text(json.dumps({"ends": ends, "rows": rows * world} | metrics))


def _validate(model: Any, loader: Any, criterion: Any) -> dict[str, float]:
    import torch

    model.eval()
    loss, correct, total = 0.0, 0, 0
    with torch.no_grad():
        for images, labels in loader:
            logits = model(images)
            loss += criterion(logits, labels).item()
            correct += (logits.argmax(1) == labels).sum().item()
            total += len(labels)
    return {"loss": loss / len(loader), "accuracy": correct / total}


def report(model: Any, metrics: dict[str, float]) -> None:
    """Report to Ray Train: the metrics and, from the first worker, the weights of the wrapped model."""
    import ray.train
    import torch

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            torch.save(model.module.state_dict(), os.path.join(folder, "model.pt"))  # noqa: PTH118 - as in the guides
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report(metrics, checkpoint=checkpoint)


def report_parts(save: Callable[[str], None], metrics: dict[str, Any]) -> None:
    """Report to Ray Train: the metrics and, from each worker, the files that `save(folder)` writes."""
    import ray.train

    with tempfile.TemporaryDirectory() as folder:
        save(folder)
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))
