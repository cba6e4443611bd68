"""Warnings about data whose test score says little about new rows.

These are copies of train rows in the test split, columns that give the target away, and columns that number the rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from training.data.images.decoding import binary_to_numpy
from training.data.sources.wording import counted
from training.data.tables.encoding import encoded_values
from training.data.tables.statistics import columns_of_parts, part_columns
from training.data.tables.values import FEATURE
from training.records import PartFile, Split, TableColumn, TableSchema

_CORRELATION = 0.9999
_MANY = 100  # with fewer rows, distinct whole numbers may be a property such as a year
_FEW = 10  # with fewer rows that have a value, a correlation is no evidence of a leak


def suspicions(
    folder: Path, parts: Mapping[Split, Sequence[PartFile]], schema: TableSchema, classes: int
) -> tuple[str, ...]:
    """The warnings, as text; `classes` is the number of classes, 0 for a regression.

    Memory use is that of :func:`training.data.tables.statistics.columns_of_parts`, and one column.
    """
    label = _joined(part_columns(folder, parts["train"], "label"))
    names = [f"{FEATURE}{column.name}" for column in schema.columns]
    columns = columns_of_parts(folder, parts["train"], names)
    leaks = []
    for column, (_, chunks) in zip(schema.columns, columns, strict=True):
        values = _joined(chunks)
        if _numbers_rows(column, values):
            leaks.append(
                f"column {column.name!r} has another whole number in each row of the train split, as a row's number or "
                f"an identifier. If it is no property of the rows, leave it out with drop=[{column.name!r}]."
            )
        leak = _names_the_class(values, label, classes) if classes else _follows(column, values, label)
        if leak:
            leaks.append(
                f"column {column.name!r} {leak} the target {schema.target!r} in the train split. If its values are not "
                f"known when a prediction is made, leave it out with drop=[{column.name!r}]."
            )
    copies = _copies(folder, parts)
    return (*([copies] if copies else []), *leaks)


def _joined(columns: Iterable[pa.ChunkedArray]) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks])


def _numbers_rows(column: TableColumn, values: pa.ChunkedArray) -> bool:
    """Whether a column has distinct whole numbers, of which it lacks at most every second between the ends."""
    rows = len(values)
    if column.kind != "number" or column.missing or rows < _MANY or column.most - column.least >= 2 * rows:
        return False
    numbers = values.to_numpy()
    return bool(np.all(numbers == np.floor(numbers))) and len(np.unique(numbers)) == rows


def _copies(folder: Path, parts: Mapping[Split, Sequence[PartFile]]) -> str:
    train, test = (_keys(folder, parts[split]) for split in ("train", "test"))
    copied = int(np.isin(test, train).sum())
    if not copied:
        return ""
    return (
        f"{copied:,} of {counted(len(test), 'test row')} equal a train row in all features and the target, so the test "
        "score is better than it would be on new rows. Remove the copies from the source, or let the content divide "
        "the rows, which keeps equal rows together: without key=, split=, time= and group=, and with all files in one "
        "folder."
    )


def _keys(folder: Path, parts: Sequence[PartFile]) -> npt.NDArray[np.uint64]:
    """One number for each row, equal for rows with equal features and equal target."""
    keys = [np.zeros(0, np.uint64)]
    for part in parts:
        table = pq.read_table(folder / part.path, columns=["source", "label"])
        source = binary_to_numpy(table["source"], np.uint64).reshape(-1, 2)
        label = table["label"].to_numpy().astype(np.float64) + 0.0
        # The digest of the features is uniformly distributed. Combined with the label's bits, multiplied by an odd
        # number, it collides as rarely as alone.
        keys.append(source[:, 0] ^ (label.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)))
    return np.concatenate(keys)


def _follows(column: TableColumn, values: pa.ChunkedArray, label: pa.ChunkedArray) -> str:
    """The verb of the warning if a column is nearly a linear function of a regression's target; else ""."""
    if column.kind == "category":
        return ""
    numbers, target = encoded_values(values, column.kind), encoded_values(label, "number")
    present = ~np.isnan(numbers)
    numbers, target = numbers[present], target[present]
    if len(numbers) < _FEW or np.ptp(numbers) == 0 or np.ptp(target) == 0:
        return ""
    if np.array_equal(numbers, target):
        return "equals"
    r = float(np.corrcoef(numbers, target)[0, 1])
    return f"has a correlation of {r:.6f} with" if abs(r) > _CORRELATION else ""


def _names_the_class(values: pa.ChunkedArray, label: pa.ChunkedArray, classes: int) -> str:
    """The verb of the warning if a column's values and the classes correspond one to one; else "".

    Rows without a value are left out.
    """
    known = pa.table({"value": values, "label": label}).filter(pc.is_valid(values))
    if len(known) < 2 * classes or pc.count_distinct(known["value"]).as_py() != classes:
        return ""
    pairs = known.group_by(["value", "label"]).aggregate([])
    return "has one value for each class of" if len(pairs) == classes else ""
