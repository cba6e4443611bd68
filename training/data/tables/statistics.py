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

_BYTES = 256 << 20  # of columns that are read at once
_VALUE_BYTES = 16  # of a value; an estimate for text


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

    With `with_target`, as for a regression, also mean and deviation of the target. Memory use is that of
    :func:`columns_of_parts`.
    """
    values = columns_of_parts(folder, parts, [f"{FEATURE}{name}" for name in columns])
    made = tuple(
        _column(chunks, name, kind) for (name, kind), (_, chunks) in zip(columns.items(), values, strict=True)
    )
    if not with_target:
        return TableSchema(target=target, columns=made)
    target_moments = moments(
        [encoded_values(values, "number") for values in part_columns(folder, parts, "label")]
    )
    return TableSchema(
        target=target, columns=made, target_mean=target_moments.mean, target_std=target_moments.std
    )


def part_columns(folder: Path, parts: Sequence[PartFile], name: str) -> Iterator[pa.ChunkedArray]:
    """One column of each part file, in order."""
    for part in parts:
        yield pq.read_table(folder / part.path, columns=[name])[name]


def columns_of_parts(
    folder: Path, parts: Sequence[PartFile], names: Sequence[str]
) -> Iterator[tuple[str, list[pa.ChunkedArray]]]:
    """The columns `names` in order: each name with the column of each part file.

    Memory use is one column, or about 256 MiB: several columns are read at once, as opening a file takes time in
    proportion to the number of all its columns.
    """
    at_once = max(1, _BYTES // (_VALUE_BYTES * max(1, sum(part.rows for part in parts))))
    for start in range(0, len(names), at_once):
        group = list(names[start : start + at_once])
        tables = [pq.read_table(folder / part.path, columns=group) for part in parts]
        for name in group:
            yield name, [table[name] for table in tables]


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


def _column(chunks: Sequence[pa.ChunkedArray], name: str, kind: ColumnKind) -> TableColumn:
    if kind == "category":
        return _category(name, chunks)
    numbers = [encoded_values(values, kind) for values in chunks]
    missing = sum(int(np.isnan(values).sum()) for values in numbers)
    return TableColumn(name=name, kind=kind, missing=missing, **moments(numbers)._asdict())


def _category(name: str, chunks: Sequence[pa.ChunkedArray]) -> TableColumn:
    counts: Counter[str] = Counter()
    missing = 0
    for values in chunks:
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
