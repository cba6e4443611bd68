"""Warnings about data that inflate a table's test score: copies of train rows in the test split, and target leaks."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from training.data.images.decoding import binary_to_numpy
from training.data.sources.wording import counted
from training.data.tables.encoding import encoded_values
from training.data.tables.statistics import part_columns
from training.data.tables.values import FEATURE
from training.records import PartFile, Split, TableColumn, TableSchema

_CORRELATION = 0.9999
_FEW = 10  # with fewer rows that have a value, a correlation is no evidence of a leak


def suspicions(
    folder: Path, parts: Mapping[Split, Sequence[PartFile]], schema: TableSchema, classes: int
) -> tuple[str, ...]:
    """The warnings, as text; `classes` is the number of classes, 0 for a regression. Memory use is two columns."""
    label = _column(folder, parts["train"], "label")
    leaks = []
    for column in schema.columns:
        values = _column(folder, parts["train"], f"{FEATURE}{column.name}")
        leak = _names_the_class(values, label, classes) if classes else _follows(column, values, label)
        if leak:
            leaks.append(
                f"column {column.name!r} {leak} the target {schema.target!r} in the train split. If its values are not "
                f"known when a prediction is made, leave it out with drop=[{column.name!r}]."
            )
    copies = _copies(folder, parts)
    return (*([copies] if copies else []), *leaks)


def _column(folder: Path, parts: Sequence[PartFile], name: str) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for one in part_columns(folder, parts, name) for chunk in one.chunks])


def _copies(folder: Path, parts: Mapping[Split, Sequence[PartFile]]) -> str:
    train, test = (_keys(folder, parts[split]) for split in ("train", "test"))
    copied = int(np.isin(test, train).sum())
    if not copied:
        return ""
    return (
        f"{copied:,} of {counted(len(test), 'test row')} equal a train row in all features and the target, so the test "
        "score is better than it would be on new rows. Remove the copies from the source, or let the content divide "
        "the rows, which keeps equal rows together: without split=, time= and group=, and with all files in one folder."
    )


def _keys(folder: Path, parts: Sequence[PartFile]) -> npt.NDArray[np.uint64]:
    """One number for each row, equal for rows with equal features and equal target."""
    found = [np.zeros(0, np.uint64)]
    for part in parts:
        table = pq.read_table(folder / part.path, columns=["source", "label"])
        source = binary_to_numpy(table["source"], np.uint64).reshape(-1, 2)
        label = table["label"].to_numpy().astype(np.float64) + 0.0
        # The digest of the features is uniformly distributed. Combined with the label's bits, multiplied by an odd
        # number, it collides as rarely as alone.
        found.append(source[:, 0] ^ (label.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)))
    return np.concatenate(found)


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
