"""The trainer `keras` in a recipe."""

from typing import TYPE_CHECKING, Any, Unpack

from training.errors import SettingError
from training.recipe import BuildModel
from training.settings.arguments import OwnLoopArguments
from training.trainer_arguments import check_function
from training.trainers.choice import BySettings
from training.trainers.keras.settings import KerasSettings

if TYPE_CHECKING:
    from torch import nn

_OTHER_NAMES = {  # arguments of model.compile and model.fit that have another name, or another place, in a recipe
    "batch_size": "use global_batch_size, the rows of a step over all workers",
    "callbacks": "leave them out; Evergreen validates, saves checkpoints, and logs",
    "class_weight": "use class_weights",
    "loss": "leave it out; the loss is that of the recipe's problem",
    "metrics": "use Recipe(metrics=...)",
    "model": "give build_model, a function that returns a new model",
    "validation_data": "leave it out; data.validation_share of the rows are validation rows",
    "validation_split": "use settings=Settings(data=DataSettings(validation_share=...))",
}


class Keras(BySettings):
    """The trainer `keras`: a Keras model, on Keras' torch backend. Its settings are in `KerasSettings`.

    `Keras(build_model, epochs=10, global_batch_size=128)`. `build_model(shape, outputs)` returns a new `keras.Model`,
    not compiled, whose output is (rows, outputs): logits of a classification, or one standardised number of a
    regression. For images, `shape` is (height, width, channels), and the model's input is (rows, height, width,
    channels), as Keras expects by default. The rest is as in :class:`training.recipe.Torch`. Evergreen's loop trains
    the model, with the loss of the recipe's problem, an optimizer of torch, and `training=True`.

    Raises :class:`training.errors.SettingError` for an invalid setting, and for an object that is no function.
    """

    SECTION = KerasSettings

    def __init__(self, build_model: BuildModel, **settings: Unpack[OwnLoopArguments]):
        if refused := sorted(_OTHER_NAMES.keys() & settings.keys()):
            raise SettingError(f"Keras: {refused[0]} is not an argument here; {_OTHER_NAMES[refused[0]]}")
        check_function("Keras", "build_model", build_model)
        super().__init__(**settings)

        def build(shape: Any, outputs: int) -> "nn.Module":
            from training.trainers.keras.module import build_keras_module

            return build_keras_module(build_model, shape, outputs)

        self.build_model: BuildModel = build
