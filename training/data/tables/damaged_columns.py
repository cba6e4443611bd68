"""Columns that a few values turned into text: `22.0 y` among numbers, in a column that a champion learned as numbers.

Such a column is a mistake of an export. Reading it as categories would train a model that has lost the column.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from training.data.tables.other_columns import word
from training.data.tables.typed_copy import copied_file, read_notes, splits_of
from training.data.tables.values import FEATURE, typed
from training.errors import DataError
from training.records import ColumnKind, SourceFiles

_SHOWN = 3
_SPELLED: dict[ColumnKind, str] = {"number": "numbers", "boolean": "true or false", "date": "dates"}


class _Wrong(NamedTuple):
    """Values of a column that are not of a kind: the first ones as (file and row, value), and how many there are."""

    first: list[tuple[str, Any]]
    wrong: int
    present: int


def check_not_damaged(
    files: SourceFiles,
    reference: Mapping[str, ColumnKind],
    champion: str,
    meant: Collection[str] = (),
) -> None:
    """Raise :class:`DataError` for a column that is text because of fewer than half of its values.

    `reference` has the kinds of the champion's columns, and `champion` names it in messages. Columns in `meant` are not
    checked: the recipe declares their types, or a setting ignores their changes. A column that is text in at least half
    of its values is no damaged column: it has changed.
    """
    notes = read_notes(Path(files.root))
    for name, kind in notes.columns.items():
        before = reference.get(name, kind)
        if kind != "category" or before == kind or name in meant:
            continue
        found = _wrong_values(Path(files.root), name, before)
        if not 0 < 2 * found.wrong < found.present:
            continue
        (where, value), *others = found.first
        also = "".join(f", {row} has {other!r}" for row, other in others)
        raise DataError(
            f"{where}: column {name!r} has {value!r}{also}: {found.wrong:,} of its {found.present:,} values are no "
            f"{word(before)}, and {champion} learned a column of {_SPELLED[before]}, so the column is damaged. Repair "
            f"the export or leave these values empty; or, for a Table, leave the column out with drop=[{name!r}], or "
            f'declare types={{"{name}": "category"}} if it is text from now on.'
        )


def _wrong_values(folder: Path, name: str, kind: ColumnKind) -> _Wrong:
    notes = read_notes(folder)
    first: list[tuple[str, Any]] = []
    wrong = present = 0
    for rows in _batches(folder, splits_of(notes), [f"{FEATURE}{name}", "file", "row"]):
        values = rows[f"{FEATURE}{name}"]
        mask = typed(values, kind).wrong
        wrong, present = wrong + int(mask.sum()), present + len(values) - values.null_count
        for row in np.flatnonzero(mask)[: _SHOWN - len(first)].tolist():
            where = f"{notes.files[rows['file'][row].as_py()]} row {rows['row'][row].as_py()}"
            first.append((where, values[row].as_py()))
    return _Wrong(first, wrong, present)


def _batches(folder: Path, splits: Collection[str], columns: list[str]) -> Iterator[Any]:
    for split in splits:
        with pq.ParquetFile(copied_file(folder, split), page_checksum_verification=True) as parquet:
            yield from parquet.iter_batches(columns=columns)
