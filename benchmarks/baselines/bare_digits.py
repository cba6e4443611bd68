"""Plain PyTorch and DDP script, as an engineer would write it, for the model of recipe `digits` (P8); no pipeline.

    torchrun --nproc-per-node 2 -m benchmarks.baselines.bare_digits EPOCHS OUT.json

Data, model, batch, optimizer, schedule, augmentation and number of epochs are those of the recipe; the weights of
the best epoch are saved and scored on the test rows.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH, LEARNING_RATE, WARMUP = 64, 5e-3, 0.05
MEAN, STD = 0.3053, 0.3760


def build_model() -> nn.Module:
    """Three convolutional layers, as in the recipe."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    layers = [*block(1, 32), *block(32, 64), nn.MaxPool2d(2), *block(64, 128)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def load() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Images and labels of a random split: 20 % test rows, and 10 % of the rest for validation."""
    digits = load_digits()
    images = ((torch.tensor(digits.images)[:, None] / 16 - MEAN) / STD).float()
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, validation = len(labels) // 5, len(labels) // 5 + len(labels) * 8 // 100
    parts = {"test": order[:test], "validation": order[test:validation], "train": order[validation:]}
    return {name: (images[rows], labels[rows]) for name, rows in parts.items()}


def augment(images: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Random rotation by up to 10 degrees, scaling by up to 10 %, and shift by up to a pixel."""
    draws = torch.rand((len(images), 4), generator=random) * 2 - 1
    angle, size = draws[:, 0] * math.radians(10), 1 + draws[:, 1] * 0.1
    theta = torch.zeros((len(images), 2, 3))
    theta[:, 0, 0], theta[:, 0, 1] = torch.cos(angle) / size, -torch.sin(angle) / size
    theta[:, 1, 0], theta[:, 1, 1] = torch.sin(angle) / size, torch.cos(angle) / size
    theta[:, :, 2] = draws[:, 2:] * 2 / images.shape[-1]
    black = -MEAN / STD
    grid = functional.affine_grid(theta, list(images.shape), align_corners=False)
    return functional.grid_sample(images - black, grid, align_corners=False) + black


def rate(step: int, steps: int) -> float:
    """Factor of the learning rate: linear warm-up, then cosine decay."""
    warm = max(1, round(WARMUP * steps))
    return (
        (step + 1) / warm if step < warm else 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))
    )


def score(module: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Mean loss, and accuracy."""
    module.eval()
    with torch.inference_mode():
        logits = module(images)
    module.train()
    return float(functional.cross_entropy(logits, labels)), float((logits.argmax(1) == labels).float().mean())


def train(epochs: int) -> dict[str, Any]:
    """Train as this rank; returns the accuracy on the test rows."""
    rank, world = dist.get_rank(), dist.get_world_size()
    parts = load()
    images, labels = parts["train"]
    torch.manual_seed(0)
    module = build_model()
    model = DistributedDataParallel(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=1e-2)
    steps_per_epoch = len(labels) // BATCH
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, epochs * steps_per_epoch))
    random = torch.Generator().manual_seed(rank)
    best, kept = math.inf, {}
    for epoch in range(epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for step in range(steps_per_epoch):
            rows = order[step * BATCH : (step + 1) * BATCH][rank::world]
            loss = functional.cross_entropy(model(augment(images[rows], random)), labels[rows])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
        loss_now, _ = score(module, *parts["validation"])
        if loss_now < best:
            best, kept = loss_now, {name: value.clone() for name, value in module.state_dict().items()}
    module.load_state_dict(kept)
    return {"accuracy": score(module, *parts["test"])[1], "weights": kept}


def main() -> None:
    """Entry point under torchrun."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    done = train(int(sys.argv[1]))
    if dist.get_rank() == 0:
        out = Path(sys.argv[2])
        torch.save(done.pop("weights"), out.with_suffix(".pt"))
        out.write_text(json.dumps(done))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
