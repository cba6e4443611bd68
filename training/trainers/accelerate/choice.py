"""The trainer `accelerate` in a recipe."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

from training.recipe import BuildModel
from training.trainers.accelerate.settings import AccelerateArguments, AccelerateSettings
from training.trainers.choice import BySettings

if TYPE_CHECKING:
    from training.trainers.accelerate.training_loop import TrainingLoop


class Accelerate(BySettings):
    """The trainer `accelerate`: the recipe has the training loop. Its settings are in `AccelerateSettings`.

    `Recipe(..., build_model=build_model, trainer=Accelerate(train, epochs=10, global_batch_size=128))`. Each worker
    calls `train(loop)` with a :class:`training.trainers.accelerate.training_loop.TrainingLoop`, which supplies the
    model and the batches, and counts the steps. `build_model(shape, outputs)` is that of
    :class:`training.recipe.Torch`; pass it to `Recipe` or to `Accelerate`.

    Raises :class:`training.errors.SettingError` for an unknown or invalid setting.
    """

    SECTION = AccelerateSettings

    def __init__(
        self,
        train: "Callable[[TrainingLoop], None]",
        build_model: BuildModel | None = None,
        **settings: Unpack[AccelerateArguments],
    ):
        super().__init__(**settings)
        self.train, self.build_model = train, build_model
