"""The network of a recipe for a language model that names neither a trainer nor a model.

The module is separate from :mod:`training.default_trainers`, since the libraries that it imports would otherwise be
required for the default networks of other problems.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

# Settings for random weights; the defaults of the trainer `transformers` are for weights that were trained before.
FROM_SCRATCH = {
    "epochs": 4,
    "global_batch_size": 64,
    "learning_rate": 2e-3,
    "warmup_steps": 0.1,
    "weight_decay": 0.1,
    "adam_beta2": 0.95,
}


def language_model(shape: Any, vocabulary: int) -> "nn.Module":
    """The network of the recipe `rt-polarity-gpt2`, as the trainer `transformers` takes it."""
    from training.recipes.rt_polarity_gpt2 import recipe

    module: nn.Module = recipe.trainer.build_model(shape, vocabulary)  # type: ignore[union-attr]  # of Transformers
    return module
