"""The recipe's Keras model on TensorFlow, and the names of its variables in checkpoints."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch  # noqa: TID253 - imported by processes that train, or that read a trained model

from training.errors import DataError, SettingError, TrainingError
from training.recipe import Recipe
from training.recipe_errors import named_as
from training.trainers.tensorflow.library import tensorflow_keras

_SEED = "seed_generator_state"  # name that Keras gives to the state of each of its random generators


def build_model(recipe: Recipe, shape: tuple[int, ...], outputs: int) -> Any:
    """Build a new model of the recipe for images of `shape` (channels, height, width).

    Raises :class:`SettingError` for a recipe of another trainer, and :class:`TrainingError` for a model that does not
    fit, or relies on parts of `model.fit` that Evergreen's loop does not have.
    """
    keras = tensorflow_keras()
    build = getattr(recipe.trainer, "build_keras_model", None)
    if build is None:
        raise SettingError(
            f"recipe {recipe.name}: its trainer builds no model of TensorFlow; use trainer=TensorFlow(build_model)"
        )
    own = (*shape[1:], shape[0])
    with named_as(recipe.name, "build_model"):
        model = build(own, outputs)
    if not isinstance(model, keras.Model):
        raise TrainingError(
            f"recipe {recipe.name}: build_model returned a {type(model).__name__}; trainer TensorFlow needs a "
            "keras.Model"
        )
    with named_as(recipe.name, "its model"):
        try:
            output_shape = tuple(model(np.zeros((2, *own), np.float32), training=False).shape)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise TrainingError(
                f"recipe {recipe.name}: its model refuses images of {own} (height, width, channels): {error}. Build "
                "the model from the shape that build_model is given."
            ) from error
    if output_shape != (2, outputs):
        raise TrainingError(
            f"recipe {recipe.name}: two images gave an output of shape {output_shape}, and the problem needs "
            f"(2, {outputs}). Size the last layer by the `outputs` that build_model is given."
        )
    if wrong := _wrong(keras, model):
        raise TrainingError(f"recipe {recipe.name}: {wrong}")
    return model


def _wrong(keras: Any, model: Any) -> str:
    """What only `model.fit` would apply, or an output that is not logits; empty if there is nothing."""
    if model.compiled:
        return (
            "build_model returns a compiled model; leave out model.compile(...): the loss is that of the recipe's "
            "problem, and TensorFlow(build_model, optimizer=..., learning_rate=...) sets the optimizer"
        )
    if model.losses:
        return (
            "the model adds losses of its own, by a regularizer or add_loss, and the loss is that of the recipe's "
            "problem; remove them, and use training.weight_decay"
        )
    last = model.layers[-1] if model.layers else None
    if (
        isinstance(last, keras.layers.Softmax)
        or getattr(last, "activation", None) is keras.activations.softmax
    ):
        return (
            "the model ends with softmax; its output must be logits: remove the activation of its last layer"
        )
    return ""


def weights_of(model: Any) -> dict[str, Any]:
    """The model's variables by name, without the states of random generators.

    A name has the position of the variable, since the names that Keras gives to layers depend on the models that the
    process has built before.
    """
    kept = [variable for variable in model.variables if variable.name != _SEED]
    return {
        f"{number:03}_{re.sub(r'[^A-Za-z0-9]', '_', variable.name)}": variable
        for number, variable in enumerate(kept)
    }


def generators_of(model: Any) -> list[Any]:
    """The states of the model's random generators."""
    return [variable for variable in model.variables if variable.name == _SEED]


def numbered(variables: list[Any]) -> dict[str, Any]:
    """The optimizer's variables by position, as their names contain names of layers."""
    return {f"{number:03}": variable for number, variable in enumerate(variables)}


def read(variables: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The values of variables, as copies."""
    return {name: torch.from_numpy(np.array(variable.numpy())) for name, variable in variables.items()}


def assign(variables: Mapping[str, Any], values: Mapping[str, torch.Tensor]) -> None:
    """Set variables to values by name. Raises :class:`DataError` if names or shapes differ."""
    if variables.keys() != values.keys():
        odd = sorted(variables.keys() ^ values.keys())[0]
        raise DataError(
            f"the saved state does not fit the recipe's model: variable {odd} is in one of them only"
        )
    for name, variable in variables.items():
        if tuple(variable.shape) != tuple(values[name].shape):
            raise DataError(f"the saved state does not fit the recipe's model: {name} has another shape")
        variable.assign(values[name].numpy())
