"""In: CSV or Parquet files with the columns of a table. Out: batches of encoded rows, in the order of paths and rows.

Columns are found by name, and further columns are not read. A value that is not of its column's type does not stop the
reading: its row contains the reason. Fails with DataError when there is nothing to read, when a file lacks a column,
and when a file is damaged.

Rows are numbered from 1 in each file, as in :class:`training.data.sources.table.Table`.
"""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.inference.inputs import Batch, Chunk, Unit, input_files, parquet_chunks, with_suffix
from tasks.model_formats.table_models import rows_of_table
from training.data.preparation.row_function import RowFunction
from training.data.preprocessing.applying import model_inputs
from training.data.sources.parquet_files import open_parquet
from training.data.sources.plain_files import check_plain
from training.data.tables.changed_features import changed_features
from training.data.tables.encoding import encoded_values, typed_rows
from training.data.tables.reading import CSV, PARQUET, blocks, column_types
from training.errors import DataError
from training.records import TableColumn, TableSchema

log = logging.getLogger("evergreen.predict")

_SHOWN = 10


@dataclass(frozen=True)
class Tables:
    """Reads the inputs of a model that takes rows of a table, as float32 (rows, columns) of encoded values.

    `function`, if any, computes the raw columns of `table` from the columns `table.given` of the files.
    """

    table: TableSchema
    function: RowFunction | None = None
    unit: Unit = "rows"
    ray_from_rows: int = 5_000_000

    @property
    def rows_at_once(self) -> int:
        """Largest number of rows that the model scores at once: at most 16,384 rows, and about 32 MiB."""
        return rows_of_table(self.table)

    def find(self, path: Path) -> list[Chunk]:
        """Find all chunks to read at `path`, sorted by path; the order depends on names alone.

        Raises :class:`DataError` when there is nothing to read, when there are both CSV and Parquet files, and when a
        file is unusable or lacks a column.
        """
        root, names = input_files(path, "Give a CSV or Parquet file, or a folder of them.")
        texts, binaries = with_suffix(names, CSV), with_suffix(names, PARQUET)
        if texts and binaries:
            raise DataError(
                f"{path}: holds CSV and Parquet ({texts[0]}, {binaries[0]}). Give one kind at a time."
            )
        if not texts and not binaries:
            kinds = ", ".join((*CSV, *PARQUET))
            raise DataError(f"{path}: nothing to score. There must be files that end in one of {kinds}.")
        if others := sorted(set(names) - set(texts) - set(binaries)):
            log.warning("%s: %d files of other formats are ignored, such as %s", path, len(others), others[0])
        return self._csv_chunks(root, texts) if texts else self._parquet_chunks(root, binaries)

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        """Read a chunk as batches. An unusable row does not stop the reading: its `error` has the reason."""
        number = chunk.first_row + 1
        for block in self._csv_rows(chunk) if chunk.row_group is None else self._parquet_rows(chunk):
            for start in range(0, len(block), self.rows_at_once):
                rows = block.slice(start, self.rows_at_once)
                yield self._batch(rows, chunk, number)
                number += len(rows)

    @property
    def _file_columns(self) -> list[str]:
        return [column.name for column in self._file_schema.columns]

    @property
    def _file_schema(self) -> TableSchema:
        """The columns to read from the files."""
        if self.function is None:
            return self.table.raw
        given = tuple(TableColumn(name=name, kind=kind) for name, kind in self.table.given.items())
        return TableSchema(target=self.table.target, columns=given)

    def _csv_chunks(self, root: Path, names: list[str]) -> list[Chunk]:
        """One chunk for each file, because a row's position is known only after all rows before it have been read."""
        self._check_headers(root, names)
        first = self._file_columns[:1]
        counts = {name: sum(len(block.rows) for block in blocks(root / name, first)) for name in names}
        return [Chunk(root=str(root), files=(name,), rows=rows) for name, rows in counts.items()]

    def _parquet_chunks(self, root: Path, names: list[str]) -> list[Chunk]:
        self._check_headers(root, names)
        return [chunk for name in names for chunk in parquet_chunks(root, name)]

    def _check_headers(self, root: Path, names: list[str]) -> None:
        """Raise :class:`DataError` for a column that a file lacks; log the names of ignored columns."""
        further: dict[str, None] = {}  # as an ordered set
        for name in names:
            check_plain(root / name)
            columns = list(column_types(root / name))
            # Without rows: only the names are checked, and a missing column raises DataError.
            no_rows = pa.table(dict.fromkeys(columns, pa.array([], pa.string())))
            typed_rows(no_rows, self._file_schema, str(root / name))
            further |= dict.fromkeys(columns)
        ignored = [name for name in further if name not in {*self._file_columns, self.table.target}]
        if ignored:
            listed = ", ".join(map(repr, ignored[:_SHOWN])) + (", …" if len(ignored) > _SHOWN else "")
            log.info("columns that the model does not use are ignored: %s", listed)

    def _csv_rows(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        return (block.rows for block in blocks(Path(chunk.root) / chunk.files[0], self._file_columns))

    def _parquet_rows(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        file = Path(chunk.root) / chunk.files[0]
        with open_parquet(
            file, memory_map=True, page_checksum_verification=True, coerce_int96_timestamp_unit="us"
        ) as parquet:
            yield from parquet.iter_batches(
                self.rows_at_once, row_groups=[chunk.row_group], columns=self._file_columns
            )

    def _batch(self, rows: pa.RecordBatch, chunk: Chunk, first: int) -> Batch:
        name, file = chunk.files[0], Path(chunk.root) / chunk.files[0]
        numbers = range(first, first + len(rows))
        typed = typed_rows(rows, self._file_schema, str(file))
        errors = [
            error and f"{file} row {number}: {error}"
            for number, error in zip(numbers, typed.errors, strict=True)
        ]
        good = np.flatnonzero([not error for error in typed.errors])
        inputs = np.full((len(rows), len(self.table.columns)), np.nan, np.float32)
        unknown = np.full(len(rows), "", object)
        if len(good):
            kept = typed.rows if len(good) == len(rows) else typed.rows.take(good)
            features, wrong = self._features(kept, f"{file} row {first + good[0]}")
            inputs[good], unknown[good] = model_inputs(features, self.table), self._unknown(features)
            for position, reason in wrong.items():
                errors[good[position]] = f"{file} row {numbers[good[position]]}: {reason}"
        return {
            "where": np.array([f"{name}:{number}" for number in numbers], object),
            "error": np.array(errors, object),
            "inputs": inputs,
            "unknown": unknown,
        }

    def _features(self, rows: pa.Table, first: str) -> tuple[pa.Table, dict[int, str]]:
        """The columns that `transform_rows` computes, and by row what is wrong with one of its values."""
        errors: dict[int, str] = {}
        if self.function is None:
            return rows, errors
        wanted = {column.name: column.kind for column in self.table.raw.columns}
        return pa.table(changed_features(self.function, rows, wanted, first, errors=errors)), errors

    def _unknown(self, typed: pa.Table) -> npt.NDArray[np.object_]:
        """For each row, "" or its categories that the model did not learn, as a JSON object by column."""
        unknown: dict[int, dict[str, str]] = {}
        for column in self.table.raw.columns:
            if column.kind != "category":
                continue
            values = typed[column.name]
            is_new = np.isnan(encoded_values(values, column.kind, column)) & values.is_valid().to_numpy()
            for row in np.flatnonzero(is_new).tolist():
                unknown.setdefault(row, {})[column.name] = values[row].as_py()
        texts = np.full(len(typed), "", object)
        for row, values in unknown.items():
            texts[row] = json.dumps(values)
        return texts
