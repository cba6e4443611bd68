"""Quotes of a CSV file: the last value of the file without a closing quote, and the remedy for quotes in a value.

Arrow reads a quoted value up to the end of the file when no quote closes the value, without an error: all later rows
are then part of the value.
"""

import os
from pathlib import Path

from training.errors import DataError

_LINE_ENDS = 1 << 20  # bytes of empty lines at the end of a file
_BACKSLASH_QUOTE = '\\"'
_DOUBLED = 'quotes inside a value must be doubled; in Spark: .option("escape", "\\"")'


def quotes_remedy(text: str, otherwise: str) -> str:
    """The remedy for a row with `text`: about quotes after a backslash, as Spark writes them, else `otherwise`."""
    return _DOUBLED if _BACKSLASH_QUOTE in text else otherwise


def check_closed(file: Path, row: int, column: str, value: bytes) -> None:
    """Raise :class:`DataError` if no quote closes the value of the last column in the last row, which is row `row`.

    `value` is as Arrow returns the value: with the spaces around it, without the quotes around it. Only a quoted value
    has line breaks, so a value without them is not checked.
    """
    if (b"\n" in value or b"\r" in value) and not _is_closed(file, value):
        remedy = quotes_remedy(value.decode(errors="replace"), "a quote inside a value must be doubled")
        raise DataError(
            f"{file} row {row}: the value of column {column!r} begins with a quote and goes on to the end of the file; "
            f"a quote is probably not closed. Correct it; {remedy}."
        )


def _is_closed(file: Path, value: bytes) -> bool:
    """Whether the file ends with the value in quotes, its own quotes doubled.

    Spaces may follow the closing quote; Arrow returns them as part of the value.
    """
    text = _end(file, 2 * len(value) + _LINE_ENDS).rstrip(b"\r\n")
    quoted = text.rstrip(b" \t")
    inner = value[: len(value) - (len(text) - len(quoted))]
    return quoted.endswith(b'"' + inner.replace(b'"', b'""') + b'"')


def _end(file: Path, size: int) -> bytes:
    """The last `size` bytes of a file."""
    with file.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - size))
        return stream.read(size)
