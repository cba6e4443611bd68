"""Recipe for scikit-learn's diabetes table (442 patients, 10 columns): a small network predicts the progression."""

from typing import TYPE_CHECKING

from evergreen import (
    BundledTable,
    GateSettings,
    Recipe,
    Regression,
    ScalingSettings,
    Settings,
    Torch,
    TrainingSettings,
)

if TYPE_CHECKING:
    from torch import nn


def build_model(shape: tuple[int], outputs: int) -> "nn.Module":
    """One hidden layer of 32 units with dropout (about 400 weights)."""
    from torch import nn

    return nn.Sequential(nn.Linear(shape[0], 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, outputs))


recipe = Recipe(
    name="diabetes",
    summary="scikit-learn's diabetes progression after a year, small network",
    source=BundledTable("diabetes"),
    problem=Regression(),
    trainer=Torch(build_model),
    settings=Settings(
        training=TrainingSettings(epochs=20, global_batch_size=64, learning_rate=5e-3, weight_decay=0.1),
        scaling=ScalingSettings(num_workers=2),
        gate=GateSettings(floor=0.2),
    ),
)
