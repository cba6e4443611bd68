"""What `predict` writes for a regression: the predicted number."""

from typing import Any

import numpy as np
import pyarrow as pa

from tasks.model_formats.base import Registered
from training.problems.base import Predictions


class NumberOutputs:
    """The result column of a regression, from predictions (rows,): the predicted number."""

    value = "number"
    row_bytes = 4

    @property
    def metadata(self) -> dict[bytes, str]:
        """No metadata."""
        return {}

    def columns(self, predictions: Predictions) -> dict[str, pa.Array]:
        """`prediction`, in the unit of the target."""
        return {"prediction": pa.array(predictions.astype(np.float32))}

    def totals(self) -> "NumberTotals":
        """New totals for mean, least and largest prediction."""
        return NumberTotals()


class NumberTotals:
    """Mean, least and largest prediction; the summary is empty without rows."""

    def __init__(self) -> None:
        self._rows, self._sum = 0, 0.0
        self._least, self._most = np.inf, -np.inf

    def add(self, predictions: Predictions) -> None:
        """Count further rows."""
        self._rows += len(predictions)
        self._sum += float(predictions.sum(dtype=np.float64))
        self._least = min(self._least, float(predictions.min()))
        self._most = max(self._most, float(predictions.max()))

    def summary(self) -> dict[str, Any]:
        """The fields `mean`, `least` and `most`."""
        if not self._rows:
            return {}
        return {"mean": self._sum / self._rows, "least": self._least, "most": self._most}


def outputs(_: Registered, __: str) -> NumberOutputs:
    """See :class:`tasks.inference.outputs.OutputsOfProblem`."""
    return NumberOutputs()
