"""Objective of a causal language model: the cross-entropy of each token given the tokens before it; its perplexity.

The target of a row is the number of its tokens that a model predicts: all but the first, and no padding.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from training.errors import TrainingError
from training.records import DatasetVersion

if TYPE_CHECKING:
    import torch
    from torch import nn

    from training.table_records import TextEncoding

_LARGEST = 700.0  # mean loss in nats whose exponential is still a float
_MOST_ROWS, _LOGITS_AT_ONCE = 512, 1 << 26  # of a forward pass without gradients; 2**26 logits are 256 MiB


@dataclass(frozen=True)
class LanguageModelObjective:
    """See :class:`training.problems.objectives.Objective`.

    The output of a row is (mean cross-entropy of its predicted tokens in nats, number of these tokens);
    :meth:`adapted` makes it from the logits of the recipe's module.
    """

    loss: str = "next_token_cross_entropy"
    metric: str = "perplexity"
    target: Literal["class", "number"] = "number"
    smooths = False

    def outputs(self, version: DatasetVersion) -> int:
        """Mean loss and number of the predicted tokens."""
        del version
        return 2

    def most_rows(self, version: DatasetVersion) -> int:
        """Rows of a validation's forward pass, fewer for longer rows and larger vocabularies."""
        return most_rows(_text_of(version))

    def adapted(self, build_model: "Callable[[Any, int], nn.Module]") -> "Callable[[Any, int], nn.Module]":
        """A function that builds the recipe's module, with the losses of its rows as output.

        `build_model(shape, outputs)` gets the size of the vocabulary as `outputs`, and its module gives logits (rows,
        tokens, vocabulary), as a tensor or as `logits` of a larger output.
        """

        def build(shape: Any, outputs: int) -> "nn.Module":
            del outputs
            module = build_model(shape, shape.vocabulary)
            own: nn.Module = getattr(module, "recipe_module", module)
            # A hook keeps the names of the weights, which a module around this one would change.
            own.register_forward_hook(_losses_of(shape.padding), with_kwargs=True)
            return module

        return build

    def torch_sums(
        self, output: "torch.Tensor", targets: "torch.Tensor", version: DatasetVersion, smoothing: float = 0.0
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        """Sum of the cross-entropies of all tokens of the batch, divided by the mean number of tokens of a row.

        The mean is that over the train split. So each token counts the same, whatever the length of its row, and the
        mean loss over the rows of the train split is the loss per token. Both sums are the same, the second in
        float64. `smoothing` has no meaning here and is ignored.
        """
        del targets, smoothing
        nats = output[:, 0] * output[:, 1]
        mean = _mean_tokens(version)
        return nats.float().sum() / mean, nats.detach().double().sum() / mean

    def torch_targets(self, targets: "torch.Tensor", version: DatasetVersion) -> "torch.Tensor":
        """Numbers of predicted tokens (rows,), as they are."""
        del version
        return targets

    def torch_predictions(self, output: "torch.Tensor", version: DatasetVersion) -> "torch.Tensor":
        """Mean loss and number of the predicted tokens, (rows, 2)."""
        del version
        return output.float()

    def reduced(self, total: float, rows: float) -> float:
        """Perplexity, as if the rows had as many tokens as those of the train split on average."""
        return math.exp(min(total / rows, _LARGEST))


def most_rows(text: "TextEncoding") -> int:
    """Rows whose logits are computed at once: a row has a logit for each of its tokens and each id."""
    return max(1, min(_MOST_ROWS, _LOGITS_AT_ONCE // (text.length * text.vocabulary)))


def _losses_of(padding: int) -> "Callable[..., torch.Tensor]":
    """A forward hook that replaces a module's logits by :func:`row_losses`."""

    def replace(
        module: "nn.Module", arguments: "tuple[torch.Tensor, ...]", named: Mapping[str, Any], output: Any
    ) -> "torch.Tensor":
        ids = named["input_ids"] if "input_ids" in named else arguments[0]
        logits = getattr(output, "logits", output)
        shape = tuple(getattr(logits, "shape", ()))
        if len(shape) != 3 or shape[1] != ids.shape[1]:
            raise TrainingError(
                f"the model {type(module).__name__} gave "
                f"{f'an output of shape {shape}' if shape else f'a {type(logits).__name__}'}; a language model needs "
                f"logits of shape (rows, {ids.shape[1]} tokens, vocabulary), as those of GPT2LMHeadModel"
            )
        return row_losses(logits, ids, padding)

    return replace


def row_losses(logits: "torch.Tensor", ids: "torch.Tensor", padding: int) -> "torch.Tensor":
    """(rows, 2): mean cross-entropy in nats of the tokens of each row after its first, and their number.

    `logits` is (rows, tokens, vocabulary), `ids` is (rows, tokens). Tokens with the id `padding` are not predicted; the
    loss of a row without predicted tokens is 0.
    """
    import torch
    from torch.nn import functional

    wanted = ids[:, 1:]
    each = functional.cross_entropy(
        logits[:, :-1].float().flatten(0, 1), wanted.flatten(), reduction="none"
    ).reshape(wanted.shape)
    present = (wanted != padding).to(each.dtype)
    tokens = present.sum(1)
    return torch.stack(((each * present).sum(1) / tokens.clamp(min=1), tokens), dim=1)


def _mean_tokens(version: DatasetVersion) -> float:
    """Mean number of predicted tokens of a row of the train split."""
    _text_of(version)
    return version.table.target_mean if version.table is not None else 0.0


def _text_of(version: DatasetVersion) -> "TextEncoding":
    if version.text is None:
        raise ValueError(f"dataset {version.name}: a language model needs texts")
    return version.text


OBJECTIVE = LanguageModelObjective()
