"""Numbers to predict, from a column of a file, as the label text of raw rows."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from training.data.tables.encoding import wrong_value
from training.data.tables.values import kind_of, plain, typed
from training.errors import DataError

_REMEDY = "Correct the value, or remove the row and its image."


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
    for one that is no finite number of 32 bits.
    """
    array = plain(values)
    made, wrong = typed(array, "number")
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"{where(row)}: {wrong_value(column, array[row].as_py(), 'number')} {_REMEDY}")
    if made.null_count:
        row = int(np.argmax(np.asarray(made.is_null())))
        raise DataError(f"{where(row)}: column {column!r}, the target, is empty or NaN. {_REMEDY}")
    return [repr(number) for number in (made.to_numpy() + 0.0).tolist()]  # adding 0 turns -0 into 0
