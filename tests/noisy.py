"""Recipes whose model draws random numbers, or keeps state that no checkpoint contains."""

from pathlib import Path

_RECIPE = """
import random

import numpy as np

from training.recipe import Recipe
from training.data.sources.digits import Digits

CALLS = 0


def called():
    global CALLS
    CALLS += 1
    return CALLS


def build_model(shape, classes):
    import torch
    from torch import nn

    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, classes)
            {init}

        def forward(self, images):
            factor = 1.0
            if self.training:
                {forward}
            return self.layer(images.flatten(1) * factor)

    return Noisy()


recipe = Recipe("noisy", "for a test", Digits(), build_model=build_model)
"""
_DATASET = """
from training.recipe import Recipe
from training.data.sources.digits import Digits


def build_model(shape, classes):
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


def dataset(version, split):
    import random

    import numpy as np
    import torch
    from torch.utils.data import Dataset

    from training.data.dataset import open_columns

    columns = open_columns(version, split)

    class Erased(Dataset):
        def __len__(self):
            return len(columns)

        def __getitem__(self, row):
            image = np.array(columns.inputs[row])
            image[:, random.randrange(8)] = 0
            image[:, :, np.random.randint(8)] = 0
            image[:, torch.randint(0, 8, ())] = 0
            return torch.from_numpy(image), int(columns.targets[row])

    return Erased()


recipe = Recipe("erased", "for a test", Digits(), build_model=build_model, dataset=dataset)
"""
# By kind: code of the model's __init__, and code of its forward pass in training.
KINDS = {
    "nothing": ("pass", "pass"),
    "random": ("pass", "factor = 1 + random.random()"),
    "numpy": ("pass", "factor = 1 + float(np.random.rand())"),
    "counter": ("self.calls = 0", "self.calls += 1; factor = 1 + self.calls / 10"),
    "buffer": (
        "self.register_buffer('drift', torch.ones(1), persistent=False)",
        "self.drift += 0.1; factor = self.drift.clone()",
    ),
    "own generator": ("self.dice = random.Random(1)", "factor = 1 + self.dice.random()"),
    "global": ("pass", "factor = 1 + called() / 10"),
    "unused counter": ("self.calls = 0", "self.calls += 1"),
    "saved counter": (
        "self.register_buffer('calls', torch.zeros(()))",
        "self.calls += 1; factor = 1 + self.calls / 10",
    ),
    "operating system": ("pass", "factor = 1 + random.SystemRandom().random()"),
}


def noisy_recipe(folder: Path, kind: str) -> str:
    """Write a recipe file whose model is of this `kind` (see `KINDS`); returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    init, forward = KINDS[kind]
    file = folder / "noisy.py"
    file.write_text(_RECIPE.format(init=init, forward=forward))
    return str(file)


def noisy_dataset(folder: Path) -> str:
    """Write a recipe file whose dataset draws from all three global random generators; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "erased.py"
    file.write_text(_DATASET)
    return str(file)
