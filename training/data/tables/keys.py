"""Keys of a table's rows: the digest of each key, the words for it, and the refusal of keys that are missing or double.

A key is the values of one column or of several, as text: the integer 7 of a Parquet file, its float 7.0 and the text
`7` of a CSV file are one key, and `007` is another one.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from training.data.images.decoding import binary_to_numpy
from training.data.tables.reading import Block, blocks
from training.data.tables.values import as_text, plain
from training.errors import DataError

KEY, KEY_TEXT = "key", "key_text"  # columns of a typed copy


def key_columns(file: Path, block: Block, names: Sequence[str]) -> dict[str, pa.Array]:
    """The columns :data:`KEY` and :data:`KEY_TEXT` of a block's rows: digests of 16 bytes, and the keys for people.

    Raises :class:`DataError` that names file and row for a key with a missing value.
    """
    values = [as_key(block.rows[name]) for name in names]
    for name, column in zip(names, values, strict=True):
        if column.null_count:
            row = block.first + int(np.argmax(np.asarray(column.is_null())))
            raise DataError(
                f"{file} row {row}: column {name!r} is empty, and key= needs a value in every row, by which the row is "
                "found again. Fill it, remove the row, or name another column as key=."
            )
    return {KEY: key_digests(values), KEY_TEXT: _words(names, values)}


def key_digests(values: Sequence[pa.Array]) -> pa.Array:
    """First half of the sha256 of each row's texts, each preceded by its length: no two keys are joined alike."""
    digests = []
    for row in zip(*(column.to_pylist() for column in values), strict=True):
        coded = [text.encode() for text in row]
        joined = b"".join(len(text).to_bytes(8, "little") + text for text in coded)
        digests.append(hashlib.sha256(joined).digest()[:16])
    return pa.array(digests, pa.binary(16))


def key_words(names: Sequence[str], texts: Sequence[str]) -> str:
    """A row's key for people, as `id 17`, or `shop 3, day 2024-01-31`."""
    return ", ".join(f"{name} {text}" for name, text in zip(names, texts, strict=True))


def as_key(values: pa.Array) -> pa.Array:
    """A column of a key as text; null for a missing value."""
    array = plain(values)
    return array.cast(pa.string()) if pa.types.is_integer(array.type) else as_text(array)


def _words(names: Sequence[str], values: Sequence[pa.Array]) -> pa.Array:
    each = [
        pc.binary_join_element_wise(name, column, " ") for name, column in zip(names, values, strict=True)
    ]
    return pc.binary_join_element_wise(*each, ", ")


class SeenKeys:
    """The keys of all rows so far, 8 bytes a row; :meth:`check` refuses a key that two rows have."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._digests: list[npt.NDArray[np.uint64]] = []
        self._places: list[tuple[Path, int]] = []  # of each block: file, number of its first row

    def add(self, file: Path, block: Block, digests: pa.Array) -> None:
        """Note the keys of a block."""
        halves = binary_to_numpy(pa.chunked_array([digests]), np.uint64).reshape(-1, 2)[:, 0]
        self._digests.append(halves.copy())
        self._places.append((file, block.first))

    def check(self) -> None:
        """Raises :class:`DataError` that names the first key that two rows have, and both rows."""
        digests = np.concatenate([np.empty(0, np.uint64), *self._digests])
        order = np.argsort(digests, kind="stable")
        again = order[1:][digests[order][1:] == digests[order][:-1]]
        if not len(again):
            return
        second = int(again.min())
        first = int(np.flatnonzero(digests == digests[second])[0])
        (one, row), (other, other_row) = self._place(first), self._place(second)
        texts = next(_texts(other, other_row, self._names))
        words = key_words(self._names, texts)
        more = f", and {len(again) - 1:,} more rows repeat a key" if len(again) > 1 else ""
        names = ", ".join(map(repr, self._names))
        raise DataError(
            f"{other} row {other_row}: its key, {words}, is that of {one} row {row}, too{more}. Each row needs a key "
            f"of its own: remove the copies, or name further columns beside {names} as key=[...]. If several rows "
            "belong together, name their column as group= instead."
        )

    def _place(self, row: int) -> tuple[Path, int]:
        ends = np.cumsum([len(block) for block in self._digests])
        number = int(np.searchsorted(ends, row, side="right"))
        file, first = self._places[number]
        return file, first + row - int(ends[number] - len(self._digests[number]))


def _texts(file: Path, row: int, names: Sequence[str]) -> Iterator[list[str]]:
    """The key of one row, as texts, read again from its file."""
    for block in blocks(file, names):
        if block.first <= row < block.first + block.rows.num_rows:
            yield [as_key(block.rows[name])[row - block.first].as_py() for name in names]
