"""The interface by which a problem defines what `predict` writes: columns of the result, numbers of the summary."""

from typing import Any, Protocol, cast

import pyarrow as pa

from tasks.model_formats.base import Registered
from tasks.problems import part_of
from training.problems.base import Predictions


class Totals(Protocol):
    """Accumulates numbers of the summary over all rows that are written."""

    def add(self, predictions: Predictions) -> None:
        """Add the predictions of further rows."""

    def summary(self) -> dict[str, Any]:
        """The numbers, as fields of :class:`tasks.predict.PredictionSummary`."""


class Outputs(Protocol):
    """What is written for a problem's predictions. `value` is the noun for one predicted number in messages."""

    value: str

    @property
    def row_bytes(self) -> int:
        """Size of the predictions of one row, in bytes."""

    @property
    def metadata(self) -> dict[bytes, str]:
        """Metadata of the result's schema."""

    def columns(self, predictions: Predictions) -> dict[str, pa.Array]:
        """Columns of the result for some rows."""

    def totals(self) -> Totals:
        """New totals, before any rows were added."""


class OutputsOfProblem(Protocol):
    """The module `tasks/problems/<name>/outputs.py`, or that of `mean_errors` there, has this function."""

    def outputs(self, registered: Registered, name: str) -> Outputs:
        """The outputs of a registered version. `name` names the version in messages."""


def outputs_of(registered: Registered, name: str) -> Outputs:
    """The outputs of a registered version. `name` names the version in messages.

    Raises :class:`training.errors.SettingError` when the version does not name the classes of its outputs.
    """
    return cast(OutputsOfProblem, part_of(registered.problem, "outputs")).outputs(registered, name)
