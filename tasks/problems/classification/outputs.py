"""What `predict` writes for a classification: class, its probability, and all probabilities."""

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.model_formats.base import Registered
from training.errors import SettingError
from training.problems.base import Predictions
from training.problems.thresholds import predicted_classes

CLASSES_KEY = b"evergreen.classes"


class ClassOutputs:
    """The result columns of a classification, from predictions (rows, classes): class, probability, probabilities."""

    value = "probability"

    def __init__(self, classes: tuple[str, ...], threshold: float | None = None) -> None:
        self.classes, self._threshold = classes, threshold

    @property
    def row_bytes(self) -> int:
        """Size of the probabilities of one row, in bytes."""
        return 4 * len(self.classes)

    @property
    def metadata(self) -> dict[bytes, str]:
        """The classes, in the order of the probabilities."""
        return {CLASSES_KEY: json.dumps(self.classes)}

    def columns(self, predictions: Predictions) -> dict[str, pa.Array]:
        """`class`, `probability` and `probabilities`."""
        best = predicted_classes(predictions, self._threshold)
        flat = pa.array(np.ascontiguousarray(predictions, np.float32).ravel())
        return {
            "class": pa.array(self.classes, pa.string()).take(pa.array(best)),
            "probability": pa.array(predictions[np.arange(len(best)), best].astype(np.float32)),
            "probabilities": pa.FixedSizeListArray.from_arrays(flat, len(self.classes)),
        }

    def totals(self) -> "ClassTotals":
        """New counters of the rows of each predicted class."""
        return ClassTotals(self.classes, self._threshold)


class ClassTotals:
    """Counts the rows of each predicted class."""

    def __init__(self, classes: tuple[str, ...], threshold: float | None = None) -> None:
        self._classes, self._threshold = classes, threshold
        self._counts: npt.NDArray[np.int64] = np.zeros(len(classes), np.int64)

    def add(self, predictions: Predictions) -> None:
        """Count further rows."""
        predicted = predicted_classes(predictions, self._threshold)
        self._counts += np.bincount(predicted, minlength=len(self._classes))

    def summary(self) -> dict[str, Any]:
        """The field `counts`."""
        return {"counts": dict(zip(self._classes, map(int, self._counts), strict=True))}


def outputs(registered: Registered, name: str) -> ClassOutputs:
    """See :class:`tasks.inference.outputs.OutputsOfProblem`. Raises the errors of :func:`classes_of`."""
    return ClassOutputs(classes_of(registered, name), registered.threshold)


def classes_of(registered: Registered, name: str) -> tuple[str, ...]:
    """The classes of a registered version, one for each number that the version gives for a row.

    Raises :class:`SettingError` when the number of classes that the model names differs from its outputs for a row.
    """
    if len(registered.classes) != registered.outputs:
        raise SettingError(
            f"{name}: gives {registered.outputs} numbers a row and names {len(registered.classes)} classes "
            "(metadata `classes`), so it is unknown which number belongs to which class. Register the model with "
            "Evergreen, which names the classes."
        )
    return registered.classes
