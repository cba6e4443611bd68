"""Convert the values of a table's columns to one type for each kind: from text (CSV files) or Arrow types (Parquet).

A column has one of four kinds, and each kind has one Arrow type: `number` float64, `category` string, `boolean` bool,
and `date` timestamp[us] (without time zone; times with an offset are converted to UTC).
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from training.records import ColumnKind

FEATURE = "feature."  # prefix of a feature's name in raw rows and part files
TYPES: dict[ColumnKind, pa.DataType] = {
    "number": pa.float64(),
    "category": pa.string(),
    "boolean": pa.bool_(),
    "date": pa.timestamp("us"),
}
# Texts in a CSV file that mean a missing value.
MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL")
LARGEST = float(np.finfo(np.float32).max)  # models compute with 32-bit numbers

_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_INFINITE = r"^[+-]?(?i:inf|infinity)$"
_DATE = r"^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}([.,]\d{1,9})?)?(Z|[+-]\d{2}(:?\d{2})?)?)?$"
_COMMA = r"^[+-]?(\d{1,3}([. ]\d{3})+|\d+),\d+$"
_LOCAL_DATE = (
    r"^((3[01]|[12]\d|0?[1-9])[./-](3[01]|[12]\d|0?[1-9])[./-](19|20)\d{2}|\d{1,2}/\d{1,2}/\d{2}"
    r"|(19|20)\d{2}[/-](1[0-2]|0?[1-9])[/-](3[01]|[12]\d|0?[1-9]))"
    r"([ T]\d{1,2}:\d{2}(:\d{2})?( ?[AaPp][Mm])?)?$"
)
_ZONE = r"(Z|[+-]\d{2}(:?\d{2})?)$"
_RECOGNISED = {"true": True, "false": False}
_DECLARED = (
    _RECOGNISED | dict.fromkeys(("yes", "y", "t", "1"), True) | dict.fromkeys(("no", "n", "f", "0"), False)
)
Mask = npt.NDArray[np.bool_]


class Typed(NamedTuple):
    """Typed values, null for a missing or wrong value, and a mask of the wrong values, which are not of the kind."""

    values: pa.Array
    wrong: Mask


def kind_of(kind: pa.DataType) -> ColumnKind | None:
    """The kind of a column with this Arrow type; None for a type that tables don't support, such as lists."""
    if pa.types.is_dictionary(kind):
        return kind_of(kind.value_type)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if is_text(kind):
        return "category"
    if pa.types.is_boolean(kind):
        return "boolean"
    return "date" if pa.types.is_date(kind) or pa.types.is_timestamp(kind) else None


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this Arrow type are strings."""
    is_string = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return bool(is_string)


def plain(values: "pa.Array | pa.ChunkedArray") -> pa.Array:
    """The values as one array, without a dictionary; strings without surrounding spaces, null if empty."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(array, pa.ChunkedArray):  # without rows
        array = pa.array([], values.type)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not is_text(array.type):
        return array
    trimmed = pc.utf8_trim_whitespace(array.cast(pa.string()))
    return pc.if_else(pc.equal(trimmed, ""), pa.scalar(None, pa.string()), trimmed)


def typed(values: "pa.Array | pa.ChunkedArray", kind: ColumnKind) -> Typed:
    """The values of a column, converted to `kind`. Infinite numbers and numbers beyond 32-bit floats are wrong."""
    array = plain(values)
    made = _FROM_TEXT[kind](array) if is_text(array.type) else _from_arrow(array, kind)
    if kind == "number":
        made = _finite(made)
    wrong = np.asarray(pc.and_(array.is_valid(), made.is_null()))
    if pa.types.is_floating(array.type):
        wrong &= ~np.isnan(np.asarray(array.cast(pa.float64())))  # NaN means a missing value
    return Typed(made, wrong)


def is_number(text: pa.Array) -> pa.Array:
    """Mask of the strings that are numbers, infinity included; null for null."""
    return pc.or_(pc.match_substring_regex(text, _NUMBER), pc.match_substring_regex(text, _INFINITE))


def has_decimal_comma(text: pa.Array) -> pa.Array:
    """Mask of the strings that are numbers with a comma, such as `3,14` or `1.234,5`; null for null."""
    return pc.match_substring_regex(text, _COMMA)


def is_local_date(text: pa.Array) -> pa.Array:
    """Mask of the strings that are dates in another form, such as `31.12.2024` or `12/31/24`; null for null."""
    return pc.match_substring_regex(text, _LOCAL_DATE)


def is_boolean(text: pa.Array) -> pa.Array:
    """Mask of the strings that are `true` or `false`, in upper or lower case; null for null."""
    return _in(text, list(_RECOGNISED))


def is_date(text: pa.Array) -> pa.Array:
    """Mask of the strings that are dates, or dates with times, as ISO 8601 writes them; null for null."""
    matches = pc.match_substring_regex(text, _DATE)
    return pc.and_(matches, pc.is_valid(_date(text))) if pc.any(matches).as_py() else matches


def text_of(value: Any) -> str:
    """A value as the name of a category or class: integral numbers without decimals, booleans in lower case."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value.isoformat() if isinstance(value, datetime) else str(value)


def as_text(values: pa.Array) -> pa.Array:
    """The values of any column as strings, by :func:`text_of`; NaN is null."""
    array = plain(values)
    if is_text(array.type):
        return array
    if pa.types.is_float16(array.type):  # for which Arrow has no dictionaries
        array = array.cast(pa.float32())
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    coded = array.dictionary_encode()
    names = pa.array([text_of(value) for value in coded.dictionary.to_pylist()], pa.string())
    return names.take(coded.indices)


def _finite(numbers: pa.Array) -> pa.Array:
    good = pc.less_equal(pc.abs(numbers), LARGEST)  # false for NaN
    return pc.if_else(good, numbers, pa.scalar(None, pa.float64()))


def _in(text: pa.Array, words: list[str]) -> pa.Array:
    is_member = pc.is_in(pc.utf8_lower(text), value_set=pa.array(words))
    return pc.if_else(text.is_valid(), is_member, pa.scalar(None, pa.bool_()))


def _number(text: pa.Array) -> pa.Array:
    good = pc.match_substring_regex(text, _NUMBER)
    return pc.if_else(good, text, pa.scalar(None, pa.string())).cast(pa.float64())


def _boolean(text: pa.Array) -> pa.Array:
    words = pa.array(list(_DECLARED))
    indices = pc.index_in(pc.utf8_lower(text), value_set=words)
    return pa.array(list(_DECLARED.values())).take(indices)


def _date(text: pa.Array) -> pa.Array:
    """Dates and times as timestamp[us] in UTC; null for text that is no date, such as 2023-02-30."""
    good = pc.match_substring_regex(text, _DATE)
    clean = pc.if_else(good, text, pa.scalar(None, pa.string()))
    clean = pc.replace_substring_regex(clean, r"[.,](\d{1,6})\d*", r".\1")
    clean = pc.if_else(
        pc.equal(pc.utf8_length(clean), 10), pc.binary_join_element_wise(clean, "T00:00", ""), clean
    )
    zoned = pc.match_substring_regex(pc.utf8_slice_codeunits(clean, 10), _ZONE)
    clean = pc.if_else(zoned, clean, pc.binary_join_element_wise(clean, "Z", ""))
    try:
        dates = clean.cast(pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid:
        coded = clean.dictionary_encode()
        dates = pa.array(map(_one_date, coded.dictionary.to_pylist()), pa.timestamp("us", "UTC"))
        dates = dates.take(coded.indices)
    return dates.cast(pa.timestamp("us"))


def _one_date(text: str | None) -> pa.Scalar:
    kind = pa.timestamp("us", "UTC")
    try:
        return pa.scalar(text, pa.string()).cast(kind)
    except pa.ArrowInvalid:
        return pa.scalar(None, kind)


def _from_arrow(values: pa.Array, kind: ColumnKind) -> pa.Array:
    """Values that are not strings, converted to `kind`; null for a value that is not of the kind."""
    target, arrow_kind = TYPES[kind], kind_of(values.type)
    if kind == "category" and arrow_kind is not None:
        return as_text(values)
    if kind == "boolean" and arrow_kind == "number":
        # Otherwise the decimal 1.00 would be the text 1.00.
        return _boolean(as_text(values.cast(pa.float64()) if pa.types.is_decimal(values.type) else values))
    if kind == "number" and arrow_kind == "boolean":
        return values.cast(pa.int8()).cast(target)
    if arrow_kind != kind:
        return pa.nulls(len(values), target)
    if kind == "date":
        zone = pa.types.is_timestamp(values.type) and values.type.tz
        values = values.cast(pa.timestamp("us", "UTC" if zone else None), safe=False)
    if pa.types.is_decimal(values.type):
        # Arrow rounds text correctly, but casts the decimal 2.3 to 2.3000000000000003.
        values = values.cast(pa.string())
    return values.cast(target, safe=False)


_FROM_TEXT: dict[ColumnKind, Callable[[pa.Array], pa.Array]] = {
    "number": _number,
    "category": lambda text: text,
    "boolean": _boolean,
    "date": _date,
}
