"""Apply a recipe's function `transform_rows` to batches of rows, and check what the function returns.

The function is part of a dataset: its result must depend on each row alone, as prediction sends rows in other batches.
"""

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.images.decoding import Pixels
from training.errors import SettingError

if TYPE_CHECKING:
    from pandas import DataFrame

# Last rows of the first batch of a shard, which the function gets a second time, in the reverse order.
_TRIED_ROWS = 16


class RowFunction(Protocol):
    """A function over a batch of rows that any process can call, and how messages name the function."""

    def __call__(self, rows: Any) -> Any:
        """uint8 images (rows, channels, height, width) for images, or a pandas DataFrame for rows of a table."""

    @property
    def label(self) -> str:
        """The function and its file, for messages."""

    @property
    def digest(self) -> str:
        """sha256 over the code that the function's result depends on."""


def changed_images(function: RowFunction, pixels: Pixels, first: str, again: bool = False) -> Pixels:
    """The images that `function` makes of `pixels`; `first` names the first row in messages.

    With `again`, the last 16 rows are given to the function a second time, in the reverse order, to detect a function
    that is random, or whose result depends on the order or on other rows of a batch. The check cannot detect a
    dependence on other rows that shows in none of these 16 rows. Raises :class:`SettingError` when the function fails
    or returns anything but uint8 images of the same number and shape.
    """
    made = _array(function, pixels.copy(), first)
    if made.dtype != np.uint8 or made.shape != pixels.shape:
        raise _error(
            function,
            first,
            f"returned {made.dtype} of shape {made.shape}, and must return uint8 of shape {pixels.shape}: one image "
            "of the same size for each row. Set data.image_size to resize images.",
        )
    if again:
        tried = _tried(len(pixels))
        few = _array(function, pixels[tried], first)
        _check_same(function, first, np.array_equal(few, made[tried]))
    return np.ascontiguousarray(made)


def changed_table(function: RowFunction, rows: pa.Table, first: str, again: bool = False) -> pa.Table:
    """The columns that `function` makes of `rows`; see :func:`changed_images`.

    Raises :class:`SettingError` when the function fails or returns anything but a DataFrame with the same number of
    rows.
    """
    made = _table(function, rows, first)
    if made.num_rows != rows.num_rows:
        raise _error(
            function,
            first,
            f"returned {made.num_rows} rows for {rows.num_rows}. It must return one row for each row, in the same "
            "order; remove rows from the source instead.",
        )
    if again:
        tried = _tried(rows.num_rows)
        few, expected = _table(function, rows.take(tried), first), made.take(tried)
        same = few.column_names == made.column_names and all(
            _plain(few[name]).cast(_plain(expected[name]).type).equals(_plain(expected[name]))
            for name in made.column_names
            if not pa.types.is_null(few[name].type)
        )
        _check_same(function, first, same)
    return made


def _tried(rows: int) -> npt.NDArray[np.int64]:
    """Numbers of the rows that the function gets a second time."""
    return np.arange(rows, dtype=np.int64)[-_TRIED_ROWS:][::-1]


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column's values without a dictionary, which differs between batches of other rows."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _array(function: RowFunction, pixels: Pixels, first: str) -> npt.NDArray[Any]:
    made = _called(function, pixels, first)
    try:
        return np.asarray(made)
    except MemoryError:
        raise
    except Exception as error:  # of numpy or of the object, such as a tensor that requires grad
        raise _error(
            function,
            first,
            f"returned {type(made).__name__}, which can't become a NumPy array: {error}. It must return a uint8 array "
            f"of shape {pixels.shape}.",
        ) from error


def _table(function: RowFunction, rows: pa.Table, first: str) -> pa.Table:
    import pandas as pd

    made: DataFrame = _called(function, rows.to_pandas(), first)
    if not isinstance(made, pd.DataFrame):
        raise _error(function, first, f"returned {type(made).__name__}, and must return a pandas DataFrame.")
    try:
        return pa.Table.from_pandas(made, preserve_index=False)
    except MemoryError:  # Arrow's own is an ArrowException, too
        raise
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise _error(function, first, f"returned columns that a table can't have: {error}.") from error


def _called(function: RowFunction, rows: Any, first: str) -> Any:
    try:
        return function(rows)
    except (SettingError, MemoryError):
        raise
    except Exception as error:
        raise _error(function, first, f"failed: {type(error).__name__}: {error}.") from error


def _check_same(function: RowFunction, first: str, same: bool) -> None:
    if not same:
        raise _error(
            function,
            first,
            f"gives other results for {_TRIED_ROWS} of its rows when they are a batch by themselves, in the reverse "
            "order. It must not be random, and each row's result must not depend on the other rows of a batch.",
        )


def _error(function: RowFunction, first: str, what: str) -> SettingError:
    return SettingError(f"{function.label}, on the batch that begins at {first}: {what}")
