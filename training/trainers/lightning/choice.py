"""The trainer `lightning` in a recipe."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

from training.recipe import BuildModel
from training.settings.arguments import GradientArguments
from training.trainer_arguments import check_function
from training.trainers.choice import BySettings
from training.trainers.lightning.settings import LightningSettings

if TYPE_CHECKING:
    from lightning.pytorch import LightningDataModule


class Lightning(BySettings):
    """The trainer `lightning`: Lightning's Trainer over a LightningModule. Its settings are in `LightningSettings`.

    `Lightning(build_module, epochs=10, global_batch_size=128)`. `build_module(shape, outputs)` returns a new
    LightningModule; `shape` and `outputs` are those of :class:`training.recipe.Torch`. The module maps a batch of
    inputs to (rows, outputs), as a module of `Torch` does. `training_step` gets the batch (inputs, targets) and returns
    the mean loss over its rows; `configure_optimizers` returns the optimizer and its schedule.

    `build_datamodule()` returns a LightningDataModule. Lightning calls its hooks, such as `setup` and
    `on_after_batch_transfer`, but neither `train_dataloader` nor `val_dataloader`: the rows are those of the recipe's
    source.

    Raises :class:`training.errors.SettingError` for an invalid setting, and for an object that is no function.
    """

    SECTION = LightningSettings

    def __init__(
        self,
        build_module: BuildModel,
        build_datamodule: "Callable[[], LightningDataModule] | None" = None,
        **settings: Unpack[GradientArguments],
    ):
        check_function("Lightning", "build_module", build_module)
        if build_datamodule is not None:
            check_function("Lightning", "build_datamodule", build_datamodule)
        super().__init__(**settings)
        self.build_model, self.build_datamodule = build_module, build_datamodule
