"""A Keras model as a PyTorch module that holds all variables of the model as its own tensors."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch  # noqa: TID253 - imported by processes that train, export or score a model
from torch import nn  # noqa: TID253

from training.errors import TrainingError
from training.recipe import BuildModel
from training.text_shape import TextShape
from training.trainers.keras.library import seeds_from_torch, torch_keras
from training.trainers.network.keras_import import set_defaults
from training.trainers.network.modules import model_example

_SEED = "seed_generator_state"  # name that Keras gives to the state of each of its random generators
_MOST_SEEDS = 2**31 - 1
_OWN_LOSSES = (
    "the Keras model adds losses of its own, by a regularizer or add_loss, and the loss is that of the recipe's "
    "problem; remove them, and use training.weight_decay"
)
Tensors = Mapping[str, torch.Tensor]
# (values of variables by name, rows, whether to train) -> (output, new values of variables by name)
Compute = Callable[[Tensors, torch.Tensor, bool], tuple[Any, dict[str, torch.Tensor]]]


class KerasModule(nn.Module):
    """Maps rows to the output of a Keras model, (rows, outputs); images come channels first.

    Trainable variables are parameters of this module. The others, such as moving statistics, are buffers, which a pass
    in training mode updates. The name of a tensor has the position of the variable among the model's weights, since
    the names that Keras gives to layers depend on the models that the process has built before. Random generators of
    Keras get new seeds in each pass in training mode, from torch's generator, so they have no state to save.
    """

    def __init__(self, model: Any, images: bool):
        super().__init__()
        self.images = images
        variables, trainable = {}, {id(variable) for variable in model.trainable_variables}
        for number, variable in enumerate(variable for variable in model.variables if variable.name != _SEED):
            name = f"{number:03}_{re.sub(r'[^A-Za-z0-9]', '_', variable.name)}"
            variables[name] = variable
            value = variable.value.detach().clone()
            if id(variable) in trainable:
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value)
        # A function, and not the model: torch would count the model's variables as tensors of this module, too.
        self._compute = _computation(model, variables, [name for name, _ in self.named_buffers()])

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The model's output for rows (rows, channels, height, width), (rows, features) or (rows, tokens)."""
        values = dict(self.named_parameters()) | dict(self.named_buffers())
        inputs = rows.permute(0, 2, 3, 1) if self.images else rows
        output, updated = self._compute(values, inputs, self.training)
        if not isinstance(output, torch.Tensor):
            raise TrainingError(
                f"the Keras model's output is a {type(output).__name__}, not a tensor of shape (rows, outputs); build "
                "a model with one output"
            )
        if updated:  # an exported program with an empty block `no_grad` could not be loaded again
            with torch.no_grad():
                for name, value in updated.items():
                    # The backward pass may need the tensor of a frozen weight unchanged.
                    if value is not values[name]:
                        values[name].copy_(value)
        return output


def _computation(model: Any, variables: Mapping[str, Any], updated: Sequence[str]) -> Compute:
    """The model's computation as a function that changes no variable of the model.

    In training, the function also returns the new values of the variables whose names are in `updated`, and raises
    :class:`TrainingError` for a layer that assigns to another variable, or adds a loss.
    """
    keras = torch_keras()
    seeds = [variable for variable in model.variables if variable.name == _SEED]

    def compute(values: Tensors, inputs: torch.Tensor, training: bool) -> tuple[Any, dict[str, torch.Tensor]]:
        mapping = [(variable, values[name]) for name, variable in variables.items()]
        if training:
            keras.utils.set_random_seed(_drawn())  # of the generator that random operations without seed use
            mapping += [(state, torch.tensor([_drawn(), 0], dtype=state.value.dtype)) for state in seeds]
        unseeded = seeds_from_torch() if training else nullcontext()
        with (
            unseeded,
            keras.device(str(inputs.device)),
            keras.StatelessScope(mapping, collect_losses=True) as scope,
        ):
            if not training:
                return model(inputs, training=False), {}
            before = {name: scope.get_current_value(variable) for name, variable in variables.items()}
            output = model(inputs, training=True)
            after = {name: scope.get_current_value(variable) for name, variable in variables.items()}
            _check_pass(scope.losses, [name for name in after if after[name] is not before[name]], updated)
            return output, {name: after[name] for name in updated}

    return compute


def _check_pass(losses: Sequence[Any], assigned: Sequence[str], may_be: Sequence[str]) -> None:
    """Refuse what a layer does in training passes alone, and this loop would not apply."""
    if losses:
        raise TrainingError(_OWN_LOSSES)
    if wrong := [name for name in assigned if name not in may_be]:
        raise TrainingError(
            f"a layer of the Keras model assigns to its trained weight {wrong[0]} in training, as "
            "SpectralNormalization does. This loop changes trained weights by the optimizer alone; leave the layer out"
        )


def _drawn() -> int:
    return int(torch.randint(_MOST_SEEDS, ()))


def build_keras_module(build_model: BuildModel, shape: tuple[int, ...], outputs: int) -> KerasModule:
    """Build the recipe's Keras model, on the CPU, for rows of `shape`; images as (channels, height, width).

    `build_model` gets the shape of images as (height, width, channels). Raises :class:`TrainingError` for a model that
    is no Keras model, refuses the rows, or relies on parts of `model.fit` that Evergreen's loop does not have, and
    :class:`training.errors.SettingError` as :func:`torch_keras` does.
    """
    keras = torch_keras()
    set_defaults(keras)
    images = len(shape) == 3 and not isinstance(shape, TextShape)
    own = (*shape[1:], shape[0]) if images else shape
    example = model_example(shape, 2)
    with keras.device("cpu"), seeds_from_torch():
        model = build_model(own, outputs)
        if not isinstance(model, keras.Model):
            raise TrainingError(
                f"build_model returned a {type(model).__name__}; trainer Keras needs a keras.Model"
            )
        try:
            model(example.permute(0, 2, 3, 1) if images else example, training=False)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            kind = "images of (height, width, channels)" if images else "rows of"
            raise TrainingError(
                f"the Keras model refuses {kind} {tuple(own)}: {error}. Build the model from the shape that "
                "build_model is given."
            ) from error
        _check(keras, model)
        return KerasModule(model, images)


def _check(keras: Any, model: Any) -> None:
    """Refuse what only `model.fit` would apply, and an output that is not logits."""
    constrained = [variable.path for variable in model.trainable_variables if variable.constraint is not None]
    if model.compiled:
        raise TrainingError(
            "build_model returns a compiled Keras model; leave out model.compile(...): the loss is that of the "
            "recipe's problem, and Keras(build_model, optimizer=..., learning_rate=...) sets the optimizer"
        )
    # Keras has no public list of the layers inside layers.
    if any(isinstance(layer, keras.layers.TorchModuleWrapper) for layer in model._flatten_layers()):
        raise TrainingError(
            "the Keras model contains a PyTorch module, whose weights Keras does not compute with in this loop; use "
            "Torch(build_model) for a PyTorch module"
        )
    if model.losses:
        raise TrainingError(_OWN_LOSSES)
    for method in ("train_step", "compute_loss"):
        if getattr(type(model), method) is not getattr(keras.Model, method):
            raise TrainingError(
                f"the Keras model has a {method} of its own, which only model.fit would call. Remove it: the loss is "
                "that of the recipe's problem. For a loop of your own, use Accelerate(train)"
            )
    if constrained:
        raise TrainingError(
            f"the Keras model has a constraint on {constrained[0]}, which only Keras' optimizers apply; remove it"
        )
    # In the order of calls; the layers of a subclassed model are not.
    sequence = model.layers if getattr(model, "outputs", None) else []
    last = sequence[-1] if sequence else None
    if (
        isinstance(last, keras.layers.Softmax)
        or getattr(last, "activation", None) is keras.activations.softmax
    ):
        raise TrainingError(
            "the Keras model ends with softmax; its output must be logits: remove the activation of its last layer"
        )
