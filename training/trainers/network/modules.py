"""Builds the module of a recipe, and checks that it fits the dataset."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch  # noqa: TID253 - imported by processes that train, export or score a model
from torch import nn  # noqa: TID253
from torch.nn.parameter import is_lazy  # noqa: TID253

from training.checkpoints.weights import DTYPE_NAMES
from training.errors import SettingError, TrainingError
from training.recipe import BuildModel, Recipe
from training.recipe_errors import named_as
from training.text_shape import TextShape

DTYPES = frozenset(getattr(torch, name) for name in DTYPE_NAMES.values())  # of a model's tensors


def build_module(recipe: Recipe, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Build a new model of the recipe, and check that it gives `outputs` values for each row of inputs of `shape`.

    The check changes no state of the model, as a first pass may that initialises it. Submodules keep the mode, training
    or evaluation, in which `build_model` returns them.

    Raises :class:`training.errors.TrainingError` if the model fails or does not fit the data, or if `build_model`
    fails, returns no module, or reads a file that is not kept with the run.
    """
    builder = _builder(recipe)
    with named_as(recipe.name, "build_model"):
        try:
            module = builder(shape, outputs)
        except FileNotFoundError as error:
            raise TrainingError(
                f"recipe {recipe.name}: build_model reads {error.filename}, which is not kept with the run. Name it "
                "in Recipe(files=(...)), relative to the recipe, and open it relative to __file__."
            ) from error
    if not isinstance(module, nn.Module):
        raise TrainingError(
            f"recipe {recipe.name}: build_model returned a {type(module).__name__}; it must return a torch.nn.Module"
        )
    _check_state(recipe.name, module)
    modes = [(part, part.training) for part in module.modules()]
    with _unchanged_state(module):
        output = _output_shape(recipe.name, module.eval(), shape)
    if output != (2, outputs):
        raise TrainingError(f"recipe {recipe.name}: {_outputs_message(shape, output, outputs)}")
    for part, mode in modes:
        part.training = mode
    return module


@contextmanager
def _unchanged_state(module: nn.Module) -> Iterator[None]:
    """Restore weights and buffers after the block; lazy ones, which the block creates, stay."""
    before = {name: value.clone() for name, value in module.state_dict().items() if not is_lazy(value)}
    yield
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if name in before and value.shape == before[name].shape:
                value.copy_(before[name])


def trained_weights(module: nn.Module) -> frozenset[str]:
    """Names of the weights that an optimizer may change: those with `requires_grad`."""
    return frozenset(name for name, weight in module.named_parameters() if weight.requires_grad)


def set_trained(module: nn.Module, names: Collection[str]) -> None:
    """Set `requires_grad` of all weights: True for those of `names`."""
    for name, weight in module.named_parameters():
        weight.requires_grad_(name in names)


def check_same_trained(module: nn.Module, before: frozenset[str]) -> None:
    """Raise :class:`TrainingError` if other weights than `before` are trained now, with several workers."""
    if changed := before ^ trained_weights(module):
        raise TrainingError(
            f"the training froze or unfroze {min(changed)}, and several workers exchange the gradients of the weights "
            "that are trained from the start. Set requires_grad where the model is built, give a part of the model a "
            "lower learning rate, or train with one worker."
        )


def _check_state(recipe: str, module: nn.Module) -> None:
    """Raise :class:`TrainingError` for state that a safetensors file, the form of a finished model, can't hold."""
    for name, value in module.state_dict().items():
        if not isinstance(value, torch.Tensor):
            raise TrainingError(
                f"recipe {recipe}: the state of its model has {name}, of the type {type(value).__name__}, and the "
                "file of a model holds tensors alone. Keep the value as a tensor, by register_buffer instead of "
                "get_extra_state."
            )
        if value.dtype not in DTYPES:
            raise TrainingError(
                f"recipe {recipe}: the state of its model has {name}, a tensor of {value.dtype}, which a model's file "
                "(safetensors) can't hold. Use another type, such as float32; for complex128, complex64."
            )


def _output_shape(recipe: str, module: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the model's output for two example rows.

    In inference mode, tensors that the model keeps for later passes could not be used in a training step.
    """
    with torch.no_grad(), named_as(recipe, "its model"):
        try:
            output = module(model_example(shape, 2))
        except (RuntimeError, ValueError, IndexError) as error:
            raise TrainingError(
                f"recipe {recipe}: its model refuses {_inputs_message(shape, error)}"
            ) from error
    if not isinstance(output, torch.Tensor):
        raise TrainingError(
            f"recipe {recipe}: its model returned a {type(output).__name__}; it must return one tensor, "
            "such as logits. Return that tensor alone, or switch further outputs off (torchvision: aux_logits=False)."
        )
    return tuple(output.shape)


def model_example(shape: tuple[int, ...], rows: int) -> torch.Tensor:
    """Example inputs for rows of `shape`: zeros; for text, the largest token id, so a too small embedding fails."""
    if isinstance(shape, TextShape):
        return torch.full((rows, *shape), shape.vocabulary - 1)
    return torch.zeros((rows, *shape))


def recipe_module(module: nn.Module) -> nn.Module:
    """The recipe's own module: `module`, or the part of `module` that its trainer has wrapped.

    Names of weights are those of this module.
    """
    own_module: nn.Module = getattr(module, "recipe_module", module)
    return own_module


def _builder(recipe: Recipe) -> BuildModel:
    """The recipe's `build_model`. Raises :class:`SettingError` if the recipe is for another trainer."""
    if recipe.build_model is None:
        raise SettingError(
            f"recipe {recipe.name}: its trainer builds no PyTorch module; use trainer=Torch(build_model)"
        )
    return recipe.build_model


def _inputs_message(shape: tuple[int, ...], error: Exception) -> str:
    if isinstance(shape, TextShape):
        return (
            f"int64 rows of {shape[0]} token ids: {error}. Build the model from the shape that build_model is given: "
            "nn.Embedding(shape.vocabulary, width, padding_idx=shape.padding)."
        )
    if len(shape) == 1:
        return (
            f"rows of {shape[0]} features: {error}. Build the model from the shape that build_model is given: "
            "(features,), with one feature for each category of a category column."
        )
    return (
        f"images of {shape} (channels, height, width): {error}. "
        "Build the model from the shape that build_model is given, or set data.image_size / data.channels."
    )


def _outputs_message(shape: tuple[int, ...], output: tuple[int, ...], outputs: int) -> str:
    if len(shape) == 1:
        return (
            f"two rows gave an output of shape {output}; {outputs} outputs need (2, {outputs}). Size the last layer "
            "by the `outputs` that build_model is given."
        )
    needs = f"{outputs} classes need" if outputs > 1 else "a number needs"
    return (
        f"two images gave an output of shape {output}; {needs} (2, {outputs}). Size the last layer by the `classes` "
        "or `outputs` that build_model is given."
    )
