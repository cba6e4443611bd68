"""ResNet-18 for grey images in a training loop with Accelerate, with the guides' optimizer."""

from typing import TYPE_CHECKING

from evergreen import Accelerate, IdxFiles, Recipe
from training.recipes.mnist import resnet18

if TYPE_CHECKING:
    from evergreen import TrainingLoop


def train(loop: "TrainingLoop") -> None:
    """The loop."""
    import torch
    from accelerate import Accelerator
    from torch.nn import functional

    accelerator, model = Accelerator(), loop.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    loop.register(model=model, optimizer=optimizer)
    for _ in loop.epochs():
        for images, labels in loop.batches():
            outputs = model(images)
            loss = functional.cross_entropy(outputs, labels)
            accelerator.backward(loss * loop.loss_weight)
            optimizer.step()
            optimizer.zero_grad()
            loop.finish_step(outputs)


recipe = Recipe(
    "bench-resnet-accelerate", source=IdxFiles("MNIST"), build_model=resnet18, trainer=Accelerate(train)
)
