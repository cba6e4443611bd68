"""Exact statistics of a table's columns over the train split: they do not depend on how the rows are sharded."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from training.data.tables.encoding import encoded_values
from training.data.tables.values import FEATURE
from training.records import ColumnKind, PartFile, TableColumn, TableSchema


class Moments(NamedTuple):
    """Mean, standard deviation (of the population), least and greatest of some numbers."""

    mean: float
    std: float
    least: float
    most: float


def table_schema(
    folder: Path,
    parts: Sequence[PartFile],
    target: str,
    columns: Mapping[str, ColumnKind],
    with_target: bool,
) -> TableSchema:
    """The columns with statistics over the part files `parts` of the train split in `folder`.

    With `with_target`, as for a regression, also mean and deviation of the target. Memory use is one column.
    """
    made = tuple(_column(folder, parts, name, kind) for name, kind in columns.items())
    if not with_target:
        return TableSchema(target=target, columns=made)
    found = moments([encoded_values(values, "number") for values in part_columns(folder, parts, "label")])
    return TableSchema(target=target, columns=made, target_mean=found.mean, target_std=found.std)


def part_columns(folder: Path, parts: Sequence[PartFile], name: str) -> Iterator[pa.ChunkedArray]:
    """One column of each part file, in order."""
    for part in parts:
        yield pq.read_table(folder / part.path, columns=[name])[name]


def moments(parts: Sequence[npt.NDArray[np.float64]]) -> Moments:
    """Moments of all numbers that are not NaN; the deviation is 1 if all are equal, or if there are none.

    Sums are correctly rounded (:func:`math.fsum`), so the order of the numbers makes no difference.
    """
    present = [numbers[~np.isnan(numbers)] for numbers in parts]
    present = [numbers for numbers in present if len(numbers)]
    if not present:
        return Moments(0.0, 1.0, 0.0, 0.0)
    rows = sum(map(len, present))
    least, most = float(min(map(np.min, present))), float(max(map(np.max, present)))
    mean = math.fsum(value for numbers in present for value in numbers.tolist()) / rows
    squares = math.fsum(value for numbers in present for value in np.square(numbers - mean).tolist())
    std = math.sqrt(squares / rows) if least < most else 1.0
    return Moments(mean if least < most else least, std or 1.0, least, most)


def _column(folder: Path, parts: Sequence[PartFile], name: str, kind: ColumnKind) -> TableColumn:
    found = part_columns(folder, parts, f"{FEATURE}{name}")
    if kind == "category":
        return _category(name, found)
    numbers = [encoded_values(values, kind) for values in found]
    missing = sum(int(np.isnan(values).sum()) for values in numbers)
    return TableColumn(name=name, kind=kind, missing=missing, **moments(numbers)._asdict())


def _category(name: str, found: Iterator[pa.ChunkedArray]) -> TableColumn:
    counts: Counter[str] = Counter()
    missing = 0
    for values in found:
        missing += values.null_count
        for entry in pc.value_counts(values.drop_null()).to_pylist():
            counts[entry["values"]] += entry["counts"]
    names = tuple(sorted(counts))
    return TableColumn(
        name=name,
        kind="category",
        missing=missing,
        categories=names,
        counts=tuple(counts[category] for category in names),
    )
