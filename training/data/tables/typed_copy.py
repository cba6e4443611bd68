"""The typed copy of a table: its files, converted once to Parquet files with one type for each column.

The copy is a folder with one Parquet file for each split, or `rows.parquet` when the source has no splits, and
`notes.json`. A row has its features as `feature.<name>`, its `label` (null if missing), the number of its source file
and its row number there, and if the source has them, the digest of its `group`, digest and text of its `key`, and its
`weight`.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from training.data.sources.rows import checked_rows
from training.data.sources.splits import in_order
from training.data.tables.keys import KEY_TEXT
from training.errors import DataError
from training.records import ColumnKind, Record
from training.storage.files import atomic_folder, digest_file, remove_folder, write_text
from training.storage.record_files import DamagedError, read_record, record_text

log = logging.getLogger("evergreen.sources")

GROUP, WEIGHT = "group", "weight"
_NOTES = "notes.json"
_ALL = "rows"  # name of the file when the source has no splits
_KEPT = 3  # copies; more than one, because a run may read a copy while another command writes a copy of newer files
_KEPT_S = 3600.0  # and all copies that a command used so recently, as several may read different data at once
_ROWS = 65_536  # per row group and batch
_GROUP_BYTES = 32 << 20  # per row group, before compression
_BATCH_BYTES = 256 << 20  # per batch, about
_AGAIN = "Run the command again: the table is read again."


class Notes(Record):
    """Source files, target and kinds of columns of a copy; by split, number of rows and sha256 of the file.

    `weight` is the source's name of the column of weights; None without weights. `newest` is the latest value of the
    column `time`, as a number, and `time` the kind of that column.
    """

    files: tuple[str, ...]
    target: str
    label: ColumnKind
    columns: dict[str, ColumnKind]
    key: tuple[str, ...] = ()
    rows: dict[str, int]
    sha256: dict[str, str]
    weight: str | None = None
    newest: float | None = None
    time: ColumnKind | None = None


def write_copy(
    folder: Path,
    notes: Notes,
    batches: Iterable[tuple[str, pa.RecordBatch]],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write the copy to `folder`, atomically, from (split, rows) pairs.

    Many small batches, as of a folder with a text in each file, share a row group. `check` is called when all rows are
    written; if `check` raises an error, no copy is kept.
    """
    with atomic_folder(folder, before_rename=check) as aside:
        writers: dict[str, _CopyWriter] = {}
        try:
            for split, batch in batches:
                if split not in writers:
                    writers[split] = _CopyWriter(copied_file(aside, split), batch.schema)
                writers[split].add(batch)
        finally:
            for writer in writers.values():
                writer.close()
        rows = {split: writer.rows for split, writer in writers.items()}
        sha256 = {split: digest_file(copied_file(aside, split)) for split in writers}
        complete = notes.model_copy(update={"rows": rows, "sha256": sha256})
        write_text(aside / _NOTES, record_text(_NOTES, complete, folder.name))


class _CopyWriter:
    """Writes the batches of one split to `file`, in row groups of about 65,536 rows or 32 MiB."""

    def __init__(self, file: Path, schema: pa.Schema) -> None:
        self.rows = 0
        self._writer = pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= _ROWS or self._waiting_bytes >= _GROUP_BYTES:
            self._write_group()

    def close(self) -> None:
        with self._writer:
            if self._waiting:
                self._write_group()

    def _write_group(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._waiting))
        self._waiting = []
        self._waiting_rows = self._waiting_bytes = 0


def read_notes(folder: Path) -> Notes:
    """The notes of a copy. Raises :class:`DataError` when they are missing or damaged."""
    try:
        return read_record(folder / _NOTES, Notes, folder.name, _AGAIN)
    except FileNotFoundError:
        raise DataError(f"{folder}: the table's typed copy is gone. {_AGAIN}") from None


def find_copy(folder: Path) -> Notes | None:
    """The notes of an undamaged copy; None when there is none. A damaged copy is removed, with a warning."""
    if not folder.exists():
        return None
    try:
        notes = read_notes(folder)
        for split, digest in notes.sha256.items():
            file = copied_file(folder, split)
            if not file.is_file() or digest_file(file) != digest:
                raise DamagedError(file, "not what was written")
        return notes
    except DataError as error:
        log.warning("%s The table is read again.", error)
        remove_folder(folder)
        return None


def forget_old_copies(folder: Path) -> None:
    """Mark the copy at `folder` as used now, and remove old copies beside it.

    Kept are the 3 copies that were used last, and those used in the last hour. Another command may remove the same
    copies at the same time.
    """
    os.utime(folder)
    used: dict[Path, int] = {}
    for copy in folder.parent.iterdir():
        with suppress(FileNotFoundError):
            if copy.is_dir() and not copy.name.startswith("."):
                used[copy] = copy.stat().st_mtime_ns
    newest = max(used.values(), default=0)  # by the file system's clock
    for old in sorted(used, key=lambda path: used[path], reverse=True)[_KEPT:]:
        if newest - used[old] > _KEPT_S * 1e9:
            with suppress(FileNotFoundError):
                remove_folder(old)


def splits_of(notes: Notes) -> tuple[str, ...]:
    """The splits of the source, in order; ("",) when the source has no splits."""
    return in_order(notes.rows)


def read_copy(folder: Path, split: str, rows: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Raw rows with the row numbers `rows` of a split, in the order of `rows`.

    The rows have the columns of the copy, with `split` and `where` (source file, row and key) in place of `file`,
    `row` and `key_text`. Raises :class:`DataError` for a damaged copy.
    """
    notes = read_notes(folder)
    chosen = checked_rows(rows, notes.rows.get(split, 0))
    file = copied_file(folder, split)
    try:
        with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
            at_once = _rows_at_once(parquet.metadata)
            for start in range(0, len(chosen), at_once):
                table = _taken(parquet, chosen[start : start + at_once])
                yield from _raw(table, notes, split)
    except MemoryError:  # Arrow's own is an ArrowException, too
        raise
    except (pa.ArrowException, OSError) as error:
        if (
            isinstance(error, OSError)
            and error.errno is not None
            and not isinstance(error, FileNotFoundError)
        ):
            raise
        raise DataError(f"{file}: damaged since it was written ({error}). {_AGAIN}") from error


def read_labels(folder: Path, split: str) -> pa.ChunkedArray:
    """The targets of all rows of a split, in order; null for a missing target."""
    with pq.ParquetFile(copied_file(folder, split), page_checksum_verification=True) as parquet:
        return parquet.read(["label"])["label"]


def read_missing(folder: Path, split: str, column: str) -> npt.NDArray[np.bool_]:
    """Mask of the rows of a split, in order, that have no value in `column`."""
    with pq.ParquetFile(copied_file(folder, split), page_checksum_verification=True) as parquet:
        masks = [np.asarray(batch[column].is_null()) for batch in parquet.iter_batches(columns=[column])]
    return np.concatenate([np.zeros(0, bool), *masks])


def _rows_at_once(metadata: pq.FileMetaData) -> int:
    """Number of rows of about 256 MiB, at most 65,536."""
    size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    width: int = max(8 * metadata.num_columns, size // max(1, metadata.num_rows))
    return max(1, min(_ROWS, _BATCH_BYTES // width))


def _taken(parquet: pq.ParquetFile, rows: npt.NDArray[np.int64]) -> pa.Table:
    """Rows by number, in any order; of the row groups that hold some of them, one is in memory at a time."""
    sizes = [parquet.metadata.row_group(group).num_rows for group in range(parquet.num_row_groups)]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    order = np.argsort(rows, kind="stable")
    ascending = rows[order]
    cuts = np.searchsorted(ascending, starts)
    taken = [
        parquet.read_row_group(group).take(pa.array(ascending[begin:end] - starts[group]))
        for group, (begin, end) in enumerate(pairwise(cuts))
        if begin < end
    ]
    place_of = np.empty_like(order)
    place_of[order] = np.arange(len(order))
    return pa.concat_tables(taken).take(pa.array(place_of))


def _raw(table: pa.Table, notes: Notes, split: str) -> Iterator[pa.RecordBatch]:
    files = table["file"].to_pylist()
    where = [
        f"{notes.files[file]} row {row}" for file, row in zip(files, table["row"].to_pylist(), strict=True)
    ]
    if notes.key:
        where = [f"{row}, {key}" for row, key in zip(where, table[KEY_TEXT].to_pylist(), strict=True)]
    made = table.drop_columns(["file", "row", *([KEY_TEXT] if notes.key else [])])
    made = made.append_column("split", pa.array([split] * len(made), pa.string()))
    made = made.append_column("where", pa.array(where, pa.string()))
    yield from made.combine_chunks().to_batches()


def group_digests(groups: pa.Array) -> pa.Array:
    """First half of the sha256 of each group's name."""
    coded = groups.dictionary_encode()
    digests = [hashlib.sha256(name.encode()).digest()[:16] for name in coded.dictionary.to_pylist()]
    return pa.array(digests, pa.binary(16)).take(coded.indices)


def copied_file(folder: Path, split: str) -> Path:
    """The file of a copy that holds the rows of a split; "" for a source without splits."""
    return folder / f"{split or _ALL}.parquet"
