"""What `predict` writes for a language model: the loss per token of each text, the perplexity and the tokens."""

from typing import Any

import numpy as np
import pyarrow as pa

from tasks.model_formats.base import Registered
from training.problems.base import Predictions


class TextOutputs:
    """The result columns of a language model, from predictions (rows, 2)."""

    value = "loss per token"
    row_bytes = 12

    @property
    def metadata(self) -> dict[bytes, str]:
        """No metadata."""
        return {}

    def columns(self, predictions: Predictions) -> dict[str, pa.Array]:
        """`loss_per_token` in nats, its exponential `perplexity`, and the number of predicted `tokens`."""
        losses = predictions[:, 0].astype(np.float32)
        return {
            "loss_per_token": pa.array(losses),
            "perplexity": pa.array(np.exp(np.minimum(losses, np.float32(88)))),
            "tokens": pa.array(predictions[:, 1].astype(np.int32)),
        }

    def totals(self) -> "TextTotals":
        """New totals: the loss per token over all texts, and that of the best and of the worst text."""
        return TextTotals()


class TextTotals:
    """Loss per token over all tokens, and its least and largest value for a text; the summary is empty without rows."""

    def __init__(self) -> None:
        self._nats, self._tokens = 0.0, 0.0
        self._least, self._most = np.inf, -np.inf

    def add(self, predictions: Predictions) -> None:
        """Count further rows."""
        numbers = predictions.astype(np.float64)
        self._nats += float(numbers.prod(axis=1).sum())
        self._tokens += float(numbers[:, 1].sum())
        self._least = min(self._least, float(numbers[:, 0].min()))
        self._most = max(self._most, float(numbers[:, 0].max()))

    def summary(self) -> dict[str, Any]:
        """The fields `value`, `mean`, `least` and `most`."""
        if not self._tokens:
            return {}
        mean = self._nats / self._tokens
        return {"value": "loss per token", "mean": mean, "least": self._least, "most": self._most}


def outputs(_: Registered, __: str) -> TextOutputs:
    """See :class:`tasks.inference.outputs.OutputsOfProblem`."""
    return TextOutputs()
