"""The interface of what `predict` writes for a row: columns of the result, and numbers of the summary."""

from typing import Any, Protocol, cast

import pyarrow as pa

from tasks.model_formats.base import Registered
from tasks.problems import part_of
from training.problems.base import Predictions


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


class OutputsOfProblem(Protocol):
    """The module `tasks/problems/<name>/outputs.py` has this function."""

    def outputs(self, registered: Registered, name: str) -> Outputs:
        """What a registered version predicts. `name` names the version in messages."""


def outputs_of(registered: Registered, name: str) -> Outputs:
    """What a registered version predicts. `name` names the version in messages.

    Raises :class:`training.errors.SettingError` when its numbers can't be named.
    """
    return cast(OutputsOfProblem, part_of(registered.problem, "outputs")).outputs(registered, name)
