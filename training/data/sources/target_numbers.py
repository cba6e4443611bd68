"""Numbers to predict, from a column of a file, as the label text of raw rows."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from training.data.tables.encoding import wrong_value
from training.data.tables.values import is_text, kind_of, plain, typed
from training.errors import DataError

_REMEDY = "Correct the value, or remove the row and its image."
_EXACT = 2.0**53  # float64 holds all integers up to here


def check_kind(kind: pa.DataType, column: str, file: object) -> None:
    """Raises :class:`DataError` for a column whose Arrow type holds no numbers."""
    if kind_of(kind) != "number":
        raise DataError(
            f"{file}: column {column!r}, the target, is of type {kind}, and a regression predicts numbers. Write "
            "numbers, or use problem=Classification()."
        )


def target_texts(values: "pa.Array | pa.ChunkedArray", column: str, where: Callable[[int], str]) -> list[str]:
    """Each number as text that reads back as the same float64; equal numbers have equal texts.

    `where` names a row for messages, by its position in `values`. Raises :class:`DataError` for a missing value, and
    for one that is no finite number of 32 bits, or an integer that float64 would round: different integers would
    become equal.
    """
    array = plain(values)
    made, wrong = typed(array, "number")
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"{where(row)}: {wrong_value(column, array[row].as_py(), 'number')} {_REMEDY}")
    if made.null_count:
        row = int(np.argmax(np.asarray(made.is_null())))
        raise DataError(f"{where(row)}: column {column!r}, the target, is empty or NaN. {_REMEDY}")
    numbers = made.to_numpy() + 0.0  # adding 0 turns -0 into 0
    for row in np.flatnonzero((np.abs(numbers) >= _EXACT) & _integers(array)).tolist():
        if int(given := array[row].as_py()) != int(numbers[row]):
            raise DataError(
                f"{where(row)}: column {column!r} has {given}, an integer that a float64 does not hold. Subtract a "
                "constant from all values, or write them in a larger unit."
            )
    return [repr(number) for number in numbers.tolist()]


def _integers(values: pa.Array) -> npt.NDArray[np.bool_]:
    """Mask of the values that are integers by their type, or text of digits alone."""
    if is_text(values.type):
        return np.asarray(pc.match_substring_regex(values, r"^[+-]?\d+$"))
    return np.full(len(values), pa.types.is_integer(values.type))
