"""Recipe for the data and the network of recipe `digits`, trained by the recipe's own loop with Accelerate."""

from typing import TYPE_CHECKING

from evergreen import Accelerate, Augmentation, Digits, GateSettings, Recipe, ScalingSettings, Settings
from training.recipes.digits import build_model

if TYPE_CHECKING:
    from evergreen import TrainingLoop


def train(loop: "TrainingLoop") -> None:
    """Train with AdamW and one cycle of the learning rate."""
    import torch
    from accelerate import Accelerator
    from torch.nn import functional

    accelerator = Accelerator()
    model = loop.build_model()
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=loop.total_steps)
    model, optimizer = accelerator.prepare(model, optimizer)
    loop.register(model=model, optimizer=optimizer, schedule=schedule)
    for _ in loop.epochs():
        for images, labels in loop.batches():
            outputs = model(images)
            loss = functional.cross_entropy(outputs, labels)
            accelerator.backward(loss * loop.loss_weight)
            optimizer.step()
            optimizer.zero_grad()
            loop.finish_step(outputs)
            schedule.step()


recipe = Recipe(
    name="digits-accelerate",
    summary="scikit-learn's handwritten digits, own loop with Accelerate",
    source=Digits(),
    build_model=build_model,
    trainer=Accelerate(train, epochs=20, global_batch_size=64),
    augmentation=Augmentation(shift=1, rotation=10, scale=0.1),
    settings=Settings(scaling=ScalingSettings(num_workers=2), gate=GateSettings(floor=0.95)),
)
