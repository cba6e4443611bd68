"""The guides' script with Accelerate on Ray Train (P17-accelerate), written from their description.

`Accelerator.prepare` wraps model, optimizer and `DataLoader`s; after each epoch a validation, a `torch.save` of the
weights and one `ray.train.report`.
"""

import time
from typing import Any

from benchmarks.baselines.guides_training import loaders, report, resnet, write_clock


def train_loop_per_worker(config: dict[str, Any]) -> None:
    """What each worker runs."""
    import torch
    from accelerate import Accelerator
    from torch import nn

    torch.set_num_threads(1)
    accelerator, criterion, model = Accelerator(cpu=True), nn.CrossEntropyLoss(), resnet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["learning_rate"], weight_decay=1e-2)
    train, validate = loaders(config)
    model, optimizer, train, validate = accelerator.prepare(model, optimizer, train, validate)
    ends, rows, metrics = [], 0, {}
    for epoch in range(config["epochs"]):
        model.train()
        for images, labels in train:
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            rows += len(labels) if epoch else 0
        metrics = _validate(accelerator, model, validate, criterion)
        report(model, metrics | {"epoch": epoch})
        ends.append(time.time())
    write_clock(config, ends, rows, metrics)


def _validate(accelerator: Any, model: Any, loader: Any, criterion: Any) -> dict[str, float]:
    import torch

    model.eval()
    losses, right = [], []
    with torch.no_grad():
        for images, labels in loader:
            logits, labels = accelerator.gather_for_metrics((model(images), labels))
            losses.append(criterion(logits, labels).item())
            right += (logits.argmax(1) == labels).tolist()
    return {"loss": sum(losses) / len(losses), "accuracy": sum(right) / len(right)}
