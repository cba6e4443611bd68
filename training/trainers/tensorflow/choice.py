"""The trainer `tensorflow` in a recipe."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from training.errors import SettingError
from training.trainer_arguments import check_function
from training.trainers.choice import BySettings
from training.trainers.tensorflow.settings import TensorFlowArguments, TensorFlowSettings

if TYPE_CHECKING:
    import keras

_OTHER_NAMES = {  # arguments of model.compile and model.fit that have another name, or another place, in a recipe
    "batch_size": "use global_batch_size, the rows of a step over all workers",
    "callbacks": "leave them out; Evergreen validates, saves checkpoints, and logs",
    "loss": "leave it out; the loss is that of the recipe's problem",
    "metrics": "use Recipe(metrics=...)",
    "model": "give build_model, a function that returns a new model",
    "validation_data": "leave it out; data.validation_share of the rows are validation rows",
    "validation_split": "use settings=Settings(data=DataSettings(validation_share=...))",
}


class TensorFlow(BySettings):
    """The trainer `tensorflow`: a Keras model on TensorFlow. Its settings are in `TensorFlowSettings`.

    `TensorFlow(build_model, epochs=10, global_batch_size=128)`. `build_model(shape, outputs)` returns a new
    `keras.Model` of Keras' own layers, not compiled, whose output is (rows, outputs): logits of a classification, or
    one standardised number of a regression. `shape` is (height, width, channels), and the model's input is (rows,
    height, width, channels). Workers train with `tf.distribute.MultiWorkerMirroredStrategy` and an optimizer of Keras,
    with the loss of the recipe's problem. TensorFlow is installed in an environment of its own, by
    `make setup EXTRAS=tensorflow`.

    Raises :class:`training.errors.SettingError` for an invalid setting, and for an object that is no function.
    """

    SECTION = TensorFlowSettings

    def __init__(
        self, build_model: "Callable[[Any, int], keras.Model]", **settings: Unpack[TensorFlowArguments]
    ):
        if refused := sorted(_OTHER_NAMES.keys() & settings.keys()):
            raise SettingError(
                f"TensorFlow: {refused[0]} is not an argument here; {_OTHER_NAMES[refused[0]]}"
            )
        check_function("TensorFlow", "build_model", build_model)
        super().__init__(**settings)
        self.build_keras_model = build_model
