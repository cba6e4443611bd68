"""What a model predicts for a row, as columns of the result and as numbers of the summary; one class per problem."""

import json
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.model_formats.base import Registered
from training.errors import SettingError
from training.problems.base import Predictions
from training.records import ProblemName

CLASSES_KEY = b"evergreen.classes"


class Totals(Protocol):
    """Numbers over all rows that were written."""

    def add(self, predictions: Predictions) -> None:
        """Count further rows."""

    def summary(self) -> dict[str, Any]:
        """Fields of :class:`tasks.predict.PredictionSummary`."""


class Outputs(Protocol):
    """The predictions of a problem. `value` is the word for one of the numbers that the model gives."""

    value: str

    @property
    def row_bytes(self) -> int:
        """Size of the predictions of one row."""

    @property
    def metadata(self) -> dict[bytes, str]:
        """Metadata of the result's schema."""

    def columns(self, predictions: Predictions) -> dict[str, pa.Array]:
        """Columns of the result for some rows."""

    def totals(self) -> Totals:
        """New totals, of no rows."""


class ClassOutputs:
    """Of a classification, with predictions (rows, classes): class, its probability, and all probabilities."""

    value = "probability"

    def __init__(self, classes: tuple[str, ...]) -> None:
        self.classes = classes

    @property
    def row_bytes(self) -> int:
        """Size of the probabilities of one row."""
        return 4 * len(self.classes)

    @property
    def metadata(self) -> dict[bytes, str]:
        """The classes, in the order of the probabilities."""
        return {CLASSES_KEY: json.dumps(self.classes)}

    def columns(self, predictions: Predictions) -> dict[str, pa.Array]:
        """`class`, `probability` and `probabilities`."""
        best = predictions.argmax(axis=1)
        flat = pa.array(np.ascontiguousarray(predictions, np.float32).ravel())
        return {
            "class": pa.array(self.classes, pa.string()).take(pa.array(best)),
            "probability": pa.array(predictions[np.arange(len(best)), best].astype(np.float32)),
            "probabilities": pa.FixedSizeListArray.from_arrays(flat, len(self.classes)),
        }

    def totals(self) -> "ClassTotals":
        """Rows of each predicted class."""
        return ClassTotals(self.classes)


class ClassTotals:
    """Rows of each predicted class."""

    def __init__(self, classes: tuple[str, ...]) -> None:
        self._classes = classes
        self._counts: npt.NDArray[np.int64] = np.zeros(len(classes), np.int64)

    def add(self, predictions: Predictions) -> None:
        """Count further rows."""
        self._counts += np.bincount(predictions.argmax(axis=1), minlength=len(self._classes))

    def summary(self) -> dict[str, Any]:
        """The field `counts`."""
        return {"counts": dict(zip(self._classes, map(int, self._counts), strict=True))}


class NumberOutputs:
    """Of a regression, with predictions (rows,): the number."""

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
        """Mean, least and largest prediction."""
        return NumberTotals()


class NumberTotals:
    """Mean, least and largest prediction; of no rows, none of them."""

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


def outputs_of(registered: Registered, name: str) -> Outputs:
    """What a registered version predicts. `name` names the version in messages.

    Raises :class:`SettingError` when a classifier does not name as many classes as it gives numbers a row.
    """
    return _MAKERS[registered.problem](registered, name)


def _classes(registered: Registered, name: str) -> Outputs:
    outputs = registered.loaded.metadata.signature.outputs.inputs[0].shape[-1]
    if len(registered.classes) != outputs:
        raise SettingError(
            f"{name}: gives {outputs} numbers a row and names {len(registered.classes)} classes "
            "(metadata `classes`), so it can't be said which is which. Register it with Evergreen, which names them."
        )
    return ClassOutputs(registered.classes)


def _numbers(_: Registered, __: str) -> Outputs:
    return NumberOutputs()


_MAKERS: dict[ProblemName, Callable[[Registered, str], Outputs]] = {
    "classification": _classes,
    "regression": _numbers,
}
