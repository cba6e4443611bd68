"""Encode rows of a table as the matrix that a model takes: 32-bit floats, one column for each feature of the schema.

A number is rounded to 32 bits. A category is its position in `TableColumn.categories`, a boolean 0 or 1, and a date the
days since 1970-01-01, with fractions for times (to about 3 minutes for today's dates, as 32 bits allow). A missing
value is NaN, and so is a category that the schema does not have.
"""

from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NamedTuple, TypeAlias
from unicodedata import normalize

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from training.data.tables.values import as_text, plain, typed
from training.errors import DataError
from training.records import ColumnKind, TableColumn, TableSchema

Rows: TypeAlias = "pa.Table | pa.RecordBatch"
_US_PER_DAY = 86_400_000_000
_SHOWN = 5


class TypedRows(NamedTuple):
    """The feature columns of some rows, with the types of the schema; for each row, "" or its error."""

    rows: pa.Table
    errors: tuple[str, ...]


def encode(rows: Rows, schema: TableSchema, prefix: str = "") -> npt.NDArray[np.float32]:
    """Encode rows as float32 (rows, columns of the schema). The columns of `rows` are named `prefix` + feature name.

    The values must have the types of part files; :func:`typed_rows` converts values of other types. Raises
    :class:`DataError` for a column that is missing.
    """
    _check_names([name.removeprefix(prefix) for name in rows.schema.names if name.startswith(prefix)], schema)
    matrix = np.empty((rows.num_rows, len(schema.columns)), np.float32)
    for number, column in enumerate(schema.columns):
        with np.errstate(over="ignore"):  # part files have no numbers beyond 32 bits
            matrix[:, number] = encoded_values(rows[prefix + column.name], column.kind, column)
    return matrix


def encoded_values(
    values: "pa.Array | pa.ChunkedArray", kind: ColumnKind, column: TableColumn | None = None
) -> npt.NDArray[np.float64]:
    """The numbers that encode the typed values of one column, NaN for a missing value.

    For categories, `column` is required: it lists the categories by position.
    """
    array = plain(values)
    if kind == "category":
        names = pa.array(column.categories if column is not None else (), pa.string())
        array = pc.index_in(as_text(array), value_set=names)
    elif kind == "boolean":
        array = array.cast(pa.int8())
    elif kind == "date":
        since_1970 = array.cast(pa.timestamp("us")).cast(pa.int64())
        # Not safe: 285 years from 1970, a float64 has less than one microsecond's precision.
        array = pc.divide(since_1970.cast(pa.float64(), safe=False), _US_PER_DAY)
    numbers: npt.NDArray[np.float64] = array.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return numbers


def typed_rows(rows: Rows, schema: TableSchema, origin: str = "the input") -> TypedRows:
    """Convert the features of `rows` to the types of the schema; further columns are ignored.

    Text is parsed as numbers, `true` and `false`, or ISO 8601 dates. A value that can't be converted becomes null,
    and its row gets an error. `origin` names the rows in messages. Raises :class:`DataError` for missing columns.
    """
    _check_names(rows.schema.names, schema, origin)
    errors = [""] * rows.num_rows
    columns = {}
    for column in schema.columns:
        values = plain(rows[column.name])
        columns[column.name], wrong = typed(values, column.kind)
        for row in np.flatnonzero(wrong).tolist():
            errors[row] = errors[row] or wrong_value(column.name, values[row].as_py(), column.kind)
    return TypedRows(pa.table(columns), tuple(errors))


def wrong_value(name: str, value: object, kind: ColumnKind) -> str:
    """Message text for a value that is not of its column's kind."""
    wanted = {
        "number": "a finite number of 32 bits",
        "boolean": "true or false",
        "date": "a date as 2024-12-31 or 2024-12-31T23:59:59",
        "category": "text",
    }[kind]
    return f"column {name!r} has {_short(value)}, not {wanted}."


def nearest(name: str, names: Sequence[str]) -> str:
    """Message text that suggests the most similar of `names`, or lists the first of them."""
    for other in names:
        if normalize("NFC", other) == normalize("NFC", name):
            return (
                f"it has {other!a}, which looks the same as {name!a} and has other characters. Write the "
                "name with the same Unicode characters in both places."
            )
    lower = {other.lower(): other for other in reversed(names)}
    if close := get_close_matches(name.lower(), lower, n=1):
        return f"did you mean {lower[close[0]]!r}?"
    more = ", …" if len(names) > 2 * _SHOWN else ""
    return f"it has {', '.join(map(repr, names[: 2 * _SHOWN]))}{more}."


def _check_names(names: Sequence[str], schema: TableSchema, origin: str = "the input") -> None:
    there = set(names)
    absent = [column.name for column in schema.columns if column.name not in there]
    if absent:
        listed = ", ".join(map(repr, absent[:_SHOWN])) + (", …" if len(absent) > _SHOWN else "")
        noun = "columns" if len(absent) > 1 else "column"
        raise DataError(
            f"{origin}: no {noun} {listed}, which the model was trained with; {nearest(absent[0], names)}"
        )
    times = Counter(names)
    for column in schema.columns:
        if times[column.name] > 1:
            raise DataError(f"{origin}: two columns are named {column.name!r}. Rename or remove one of them.")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
