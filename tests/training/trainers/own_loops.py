"""Small trainings by a recipe's own loop with Accelerate."""

from pathlib import Path

LOOP = """
from evergreen import Accelerate, Augmentation, Digits, Recipe


def build_model(shape, outputs):
    from torch import nn
    return nn.Sequential(
        nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(32, outputs),
    )


def train(loop):
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = loop.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    model, optimizer = accelerator.prepare(model, optimizer)
    loop.register(model=model, optimizer=optimizer, schedule=schedule)
    for _ in loop.epochs():
        for inputs, targets in loop.batches():
            outputs = model(inputs)
            loss = torch.nn.functional.cross_entropy(outputs, targets)
            accelerator.backward(loss * loop.loss_weight)
            optimizer.step()
            optimizer.zero_grad()
            loop.finish_step(outputs, own_loss=loss)
        schedule.step()


recipe = Recipe(
    "own", "for a test", Digits(), build_model=build_model, trainer=Accelerate(train, epochs=3),
    augmentation=Augmentation(shift=1),
)
"""


def write_loop(folder: Path, *changes: tuple[str, str]) -> str:
    """Write the recipe, with parts of its text replaced."""
    text = LOOP
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "own.py").write_text(text)
    return str(folder / "own.py")
