"""What a model of Transformers gets as arguments, and where its output has the logits."""

from collections.abc import Mapping
from typing import Any

import torch  # noqa: TID253 - imported by processes that train, export or score a model
from torch import nn  # noqa: TID253

from training.errors import TrainingError

_FIRST = "rows"  # name of the first positional argument of a model that does not take token ids


class RowsToLogits(nn.Module):
    """Maps rows to logits with `recipe_module`, the recipe's model; torch.export can trace this module.

    `padding` is the id that fills up a short row of token ids.
    """

    def __init__(self, recipe_module: nn.Module, padding: int = 0):
        super().__init__()
        self.recipe_module, self.padding = recipe_module, padding

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of token ids (rows, length), int64, or float images or features; gives (rows, outputs)."""
        return logits(self.recipe_module, model_inputs(rows, self.padding))

    def own_names(
        self, weights: Mapping[str, torch.Tensor], new_head: bool
    ) -> tuple[Mapping[str, torch.Tensor], frozenset[str]]:
        """See :func:`training.trainers.network.fine_tuning.start_from`."""
        from training.trainers.transformers.given_weights import own_names

        return own_names(self.recipe_module, weights, new_head)


def model_inputs(rows: torch.Tensor, padding: int) -> dict[str, torch.Tensor]:
    """The arguments of a model by name."""
    if rows.dtype != torch.int64:
        return {_FIRST: rows}
    return {"input_ids": rows, "attention_mask": (rows != padding).to(torch.int64)}


def logits(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The model's output for the arguments of :func:`model_inputs`: a tensor, or the `logits` of a larger output.

    Raises :class:`TrainingError` for an output without logits.
    """
    output: Any = model(inputs[_FIRST]) if _FIRST in inputs else model(**inputs)
    tensor = output if isinstance(output, torch.Tensor) else getattr(output, "logits", None)
    if not isinstance(tensor, torch.Tensor):
        raise TrainingError(
            f"the model's output, a {type(output).__name__}, has no logits; build a model with a head for the problem, "
            "such as BertForSequenceClassification(BertConfig(num_labels=outputs))"
        )
    return tensor
