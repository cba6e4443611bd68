"""The network of a recipe for a language model that names neither a trainer nor a model.

The module is separate from :mod:`training.default_trainers`, since the libraries that it imports would otherwise be
required for the default networks of other problems.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def language_model(shape: Any, vocabulary: int) -> "nn.Module":
    """The network of the recipe `rt-polarity-gpt2`, as the trainer `transformers` takes it."""
    from training.recipes.rt_polarity_gpt2 import recipe

    module: nn.Module = recipe.trainer.build_model(shape, vocabulary)  # type: ignore[union-attr]  # of Transformers
    return module
