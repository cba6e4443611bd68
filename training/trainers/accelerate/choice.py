"""The trainer `accelerate` in a recipe."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

from training.recipe import BuildModel
from training.trainer_arguments import check_function
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

    Raises :class:`training.errors.SettingError` for an invalid setting, and for an object that is no function.
    """

    SECTION = AccelerateSettings

    def __init__(
        self,
        train: "Callable[[TrainingLoop], None]",
        build_model: BuildModel | None = None,
        **settings: Unpack[AccelerateArguments],
    ):
        check_function("Accelerate", "train", train)
        if build_model is not None:
            check_function("Accelerate", "build_model", build_model)
        super().__init__(**settings)
        self.train, self.build_model = train, build_model
