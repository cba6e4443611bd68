"""The serving model: a Keras model that maps uint8 images to predictions, made of Keras' own layers alone."""

from typing import Any

from training.problems.objectives import objective_named
from training.recipe import Recipe
from training.records import DatasetVersion, TrainedModel
from training.trainers.network.serving import load_weights_of
from training.trainers.tensorflow.library import tensorflow_keras
from training.trainers.tensorflow.model import assign, build_model, weights_of


def serving_model(recipe: Recipe, version: DatasetVersion, trained: TrainedModel) -> Any:
    """The serving model with the weights of a finished training.

    Raises :class:`training.errors.DataError` if the weights file is not what training wrote.
    """
    model = build_model(recipe, version.shape, objective_named(version.problem).outputs(version))
    weights: Any = load_weights_of(trained)
    assign(weights_of(model), weights)
    return with_inputs(model, version)


def with_inputs(model: Any, version: DatasetVersion) -> Any:
    """A recipe's model between the conversion of its inputs and that of its output to predictions.

    It maps uint8 images (rows, channels, height, width) to float32 predictions: probabilities (rows, classes), or
    numbers (rows,) of a regression.
    """
    layers = (keras := tensorflow_keras()).layers
    images = keras.Input(version.shape, dtype="uint8")
    rows = layers.Rescaling(1 / 255)(layers.Permute((2, 3, 1))(images))
    variance = [deviation**2 for deviation in version.std]
    output = model(layers.Normalization(mean=list(version.mean), variance=variance)(rows))
    if objective_named(version.problem).target == "class":
        return keras.Model(images, layers.Softmax()(output))
    assert version.table is not None  # of images with numbers, its table has the target
    scale, offset = version.table.target_std, version.table.target_mean
    return keras.Model(images, layers.Reshape(())(layers.Rescaling(scale, offset)(output)))
