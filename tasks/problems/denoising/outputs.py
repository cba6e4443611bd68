"""What `predict` writes for a denoising model: the class under which an image's noise is predicted best, and errors.

The class with the lowest error is that of a "diffusion classifier" (A. C. Li et al., "Your Diffusion Model is Secretly
a Zero-Shot Classifier", ICCV 2023).
"""

import numpy as np
import pyarrow as pa

from tasks.model_formats.base import Registered
from tasks.problems.classification.outputs import ClassOutputs, ClassTotals, classes_of
from training.problems.base import Predictions


class ErrorOutputs(ClassOutputs):
    """The result columns of a denoising model, from predictions (rows, classes)."""

    value = "noise error"

    def columns(self, predictions: Predictions) -> dict[str, pa.Array]:
        """`class`, the class with the lowest error; this error, `noise_error`; and `noise_errors`, under each class."""
        best = predictions.argmin(axis=1)
        flat = pa.array(np.ascontiguousarray(predictions, np.float32).ravel())
        return {
            "class": pa.array(self.classes, pa.string()).take(pa.array(best)),
            "noise_error": pa.array(predictions[np.arange(len(best)), best].astype(np.float32)),
            "noise_errors": pa.FixedSizeListArray.from_arrays(flat, len(self.classes)),
        }

    def totals(self) -> "ErrorTotals":
        """New counters of the rows of each class."""
        return ErrorTotals(self.classes)


class ErrorTotals(ClassTotals):
    """Counts the rows by the class with the lowest error."""

    def add(self, predictions: Predictions) -> None:
        """Count further rows."""
        super().add(-predictions)


def outputs(registered: Registered, name: str) -> ErrorOutputs:
    """See :func:`tasks.problems.classification.outputs.outputs`."""
    return ErrorOutputs(classes_of(registered, name))
