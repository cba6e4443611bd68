"""What trials train: for each trainer, and each strategy of the PyTorch loop, a recipe with slow steps.

A step takes long enough that a fault can hit a chosen one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from training.seams import EXTRAS
from training.settings.schema import TrainerName
from training.trainers.base import trainer_named

_TABLE = "slow.csv"
_TABLE_ROWS, _TABLE_COLUMNS = 20_000, 20

_SLOW_MODEL = '''"""A model of one layer whose steps take 25 ms at least."""

import time

from evergreen import Digits, Recipe


def build_model(shape, classes):
    from torch import nn

    class Slow(nn.Sequential):
        def forward(self, images):
            if self.training:
                time.sleep(0.025)
            return super().forward(images)

    return Slow(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))


recipe = Recipe("slow", "a step takes 25 ms at least", Digits(), build_model=build_model)
'''
_SLOW_LIGHTNING = '''"""A LightningModule of one layer whose steps take 25 ms at least."""

import time

from evergreen import Digits, Lightning, Recipe


def build_module(shape, classes):
    import lightning
    import torch
    from torch import nn
    from torch.nn import functional

    class Slow(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(
                nn.Flatten(), nn.Dropout(0.1), nn.Linear(shape[0] * shape[1] * shape[2], classes)
            )

        def forward(self, images):
            return self.layers(images)

        def training_step(self, batch):
            time.sleep(0.025)
            images, labels = batch
            return functional.cross_entropy(self(images), labels)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    return Slow()


recipe = Recipe("slow-lightning", "a step takes 25 ms at least", Digits(), trainer=Lightning(build_module))
'''
_SLOW_LOOP = '''"""A training loop with Accelerate, whose steps take 25 ms at least."""

import time

from evergreen import Accelerate, Digits, Recipe


def build_model(shape, classes):
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(shape[0] * shape[1] * shape[2], classes))


def train(loop):
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = loop.build_model()
    optimizer = torch.optim.Adam(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    loop.register(model=model, optimizer=optimizer)
    for _ in loop.epochs():
        for inputs, targets in loop.batches():
            time.sleep(0.025)
            outputs = model(inputs)
            accelerator.backward(torch.nn.functional.cross_entropy(outputs, targets) * loop.loss_weight)
            optimizer.step()
            optimizer.zero_grad()
            loop.finish_step(outputs)


recipe = Recipe("slow-loop", "", Digits(), build_model=build_model, trainer=Accelerate(train))
'''
_SLOW_TRANSFORMER = '''"""A model for the Trainer of Transformers, whose steps take 25 ms at least."""

import time

from evergreen import Digits, Recipe, Transformers


def build_model(shape, classes):
    from torch import nn

    class Slow(nn.Sequential):
        def forward(self, images):
            if self.training:
                time.sleep(0.025)
            return super().forward(images)

    return Slow(nn.Flatten(), nn.Dropout(0.1), nn.Linear(shape[0] * shape[1] * shape[2], classes))


recipe = Recipe("slow-transformer", "", Digits(), trainer=Transformers(build_model, learning_rate=1e-3))
'''
_SLOW_KERAS = '''"""A Keras model with dropout and moving statistics, whose steps take 25 ms at least."""

import time

from evergreen import Digits, Keras, Recipe


def build_model(shape, classes):
    import keras
    from keras import layers

    class Slow(keras.Sequential):
        def call(self, rows, training=None, mask=None):
            if training:
                time.sleep(0.025)
            return super().call(rows, training=training, mask=mask)

    return Slow(
        [keras.Input(shape), layers.Flatten(), layers.BatchNormalization(), layers.Dropout(0.1), layers.Dense(classes)]
    )


recipe = Recipe("slow-keras", "", Digits(), trainer=Keras(build_model))
'''
# The work makes steps slow: TensorFlow compiles a step, and a model with a layer of its own is not registered.
_SLOW_TENSORFLOW = '''"""A Keras model on TensorFlow with moving statistics, whose steps take 25 ms or more."""

from evergreen import Digits, Recipe, TensorFlow


def build_model(shape, classes):
    import keras
    from keras import layers

    wide = [layers.Conv2D(64, 3, padding="same", activation="relu") for _ in range(4)]
    return keras.Sequential(
        [keras.Input(shape), *wide, layers.Flatten(), layers.BatchNormalization(), layers.Dense(classes)]
    )


recipe = Recipe("slow-tensorflow", "", Digits(), trainer=TensorFlow(build_model))
'''
# The rows make rounds slow: a recipe of trees has no code that runs in a round.
_SLOW_TREES = """\"\"\"Trees of a table with so many rows and columns that a round takes some 20 ms.\"\"\"

from evergreen import {trainer}, Classification, Recipe, Table

trees = {trainer}({settings})
recipe = Recipe("{name}", "rounds of some 20 ms", Table("{table}", "label"), Classification(), trees)
"""
_SHARED = {
    "seed": "1",
    "tracking.log_every_steps": "2",
    "tracking.system_metrics": "false",
    "tracking.outage_s": "120",
    "gate.floor": "0.05",
    "scaling.use_gpu": "no",
    "scaling.cpus_per_worker": "0.5",
    "failure.hang_timeout_s": "6",
}
# 16 steps per epoch: checkpoints at steps 4, 8 and 12 and at the end of the epoch.
_FOUR_EPOCHS = {
    "training.epochs": "4",
    "training.global_batch_size": "48",
    "data.max_train_rows": "800",
    "data.max_test_rows": "200",
    "checkpoint.every_steps": "4",
}

_TREES = _SHARED | {
    "training.rounds": "100",
    "checkpoint.every_steps": "10",
    # Ends no training, but metric points are then written after each round, so that a fault can hit a chosen one.
    "training.early_stopping_rounds": "100",
}


@dataclass(frozen=True)
class Workload:
    """What a trial trains with `trainer`: `steps` steps, with a checkpoint after every `steps_per_checkpoint`.

    A boosting round counts as a step. `write_data` creates the files that the recipe reads, beside the recipe's file.
    """

    trainer: TrainerName
    recipe: str
    text: str
    settings: Mapping[str, str]
    steps: int
    steps_per_checkpoint: int
    write_data: Callable[[Path], None] = lambda _: None

    @property
    def has_virtual_shards(self) -> bool:
        """Whether `training.virtual_shards` is a setting of this training."""
        return self.trainer == "torch" and "training.strategy" not in self.settings

    @property
    def missing_library(self) -> str:
        """A library that this training needs and that is not installed here; empty if there is none."""
        needed = (*trainer_named(self.trainer).DISTRIBUTIONS, self.settings.get("training.strategy", ""))
        return next((name for name in needed if name in EXTRAS and find_spec(name) is None), "")

    @property
    def checkpoint_steps(self) -> range:
        """Steps at which an undisturbed training saves a checkpoint."""
        return range(self.steps_per_checkpoint, self.steps + 1, self.steps_per_checkpoint)

    def write(self, folder: Path) -> Path:
        """Write the recipe and its data to `folder`; returns the recipe's file."""
        self.write_data(folder)
        file = folder / f"{self.recipe}.py"
        file.write_text(self.text)
        return file


def _write_table(folder: Path) -> None:
    random = np.random.default_rng(1)
    numbers = random.normal(size=(_TABLE_ROWS, _TABLE_COLUMNS)).round(3)
    noise = random.normal(size=_TABLE_ROWS)
    labels = np.where(numbers[:, 0] + numbers[:, 1] * numbers[:, 2] + noise > 0, "above", "below")
    lines = [",".join([*map(str, row), label]) for row, label in zip(numbers.tolist(), labels, strict=True)]
    header = ",".join([*(f"x{at}" for at in range(_TABLE_COLUMNS)), "label"])
    (folder / _TABLE).write_text("\n".join([header, *lines, ""]))


def _network(trainer: TrainerName, recipe: str, text: str) -> Workload:
    """The training of a network: four epochs of 16 steps, with a checkpoint every four steps."""
    return Workload(trainer, recipe, text, _SHARED | _FOUR_EPOCHS, steps=64, steps_per_checkpoint=4)


def _strategy(strategy: str) -> Workload:
    """The training of the PyTorch loop's network with another strategy."""
    plain = _network("torch", f"slow-{strategy}", _SLOW_MODEL.replace('"slow"', f'"slow-{strategy}"'))
    return replace(plain, settings={**plain.settings, "training.strategy": strategy})


# By the name that `make chaos ARGS="--trainer NAME"` takes: a trainer's, or `torch-` and a strategy's.
WORKLOADS: Mapping[str, Workload] = {
    "torch": _network("torch", "slow", _SLOW_MODEL),
    "torch-fsdp": _strategy("fsdp"),
    "torch-deepspeed": _strategy("deepspeed"),
    "lightning": _network("lightning", "slow-lightning", _SLOW_LIGHTNING),
    "accelerate": _network("accelerate", "slow-loop", _SLOW_LOOP),
    "transformers": _network("transformers", "slow-transformer", _SLOW_TRANSFORMER),
    "keras": _network("keras", "slow-keras", _SLOW_KERAS),
    "tensorflow": _network("tensorflow", "slow-tensorflow", _SLOW_TENSORFLOW),
    "xgboost": Workload(
        trainer="xgboost",
        recipe="slow-trees",
        text=_SLOW_TREES.format(
            name="slow-trees",
            trainer="XGBoost",
            settings="max_depth=6, learning_rate=0.1, subsample=0.8, colsample_bytree=0.8",
            table=_TABLE,
        ),
        settings=_TREES,
        steps=100,
        steps_per_checkpoint=10,  # the rounds of a block: a checkpoint holds whole blocks
        write_data=_write_table,
    ),
    "lightgbm": Workload(
        trainer="lightgbm",
        recipe="slow-leaves",
        text=_SLOW_TREES.format(
            name="slow-leaves",
            trainer="LightGBM",
            settings="bagging_fraction=0.8, feature_fraction=0.8",
            table=_TABLE,
        ),
        settings=_TREES,
        steps=100,
        steps_per_checkpoint=10,
        write_data=_write_table,
    ),
}
