"""The source of images and labels in Parquet: one file, a folder of files, or folders train/ and test/.

In: the files, read in place. Out: raw rows; files are ordered by content, and rows as in their file. Keep row groups
below about 10,000 rows: a row group is decoded from its start for each shard that begins inside it.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from training.data.sources.parquet_files import open_parquet, read_types, rows_to_read
from training.data.sources.parquet_index import (
    IndexedRow,
    class_names,
    class_order,
    find_files,
    index_file,
)
from training.data.sources.parquet_pixels import Cell, CellError, cells, describe
from training.data.sources.places import given_path, listing_folder
from training.data.sources.rows import Numbers, RawImage, checked_rows, raw_batch
from training.data.sources.splits import in_order, is_divided
from training.data.sources.unchanged import gone_named, warn_of_copies
from training.errors import DataError
from training.records import Record, SourceFiles
from training.storage.files import atomic_file, digest_file, digest_json
from training.storage.record_files import read_record, write_record

log = logging.getLogger("evergreen.sources")

_INDEX = "index.parquet"
_NOTES = "files.json"
_CHUNK_ROWS = 256
_BATCH_BYTES = 64 << 20


@dataclass(frozen=True)
class ParquetImages:
    """A Parquet file, a folder of Parquet files, or a folder with train/ and test/.

    A column `split` gives the splits of rows, too. `image` and `label` name the columns of images and labels. Labels
    are strings, or integers k that stand for `classes[k]`; where the schema of a file has names for its integers, as
    Hugging Face's `datasets` writes them, for name k there.
    """

    path: str | Path | None = None
    image: str = "image"
    label: str = "label"
    classes: tuple[str, ...] = ()

    def fetch(self, folder: Path) -> SourceFiles:
        """Hash the files and check schema and labels; an index of rows is written to `folder`, no file is copied."""
        root = given_path(self.path, "a Parquet source")
        # Sorted by content, so that file names don't matter; the order of two equal files makes no difference.
        with gone_named():
            hashed_files = sorted(
                (split, digest_file(file), file.stat().st_size, file) for split, file in find_files(root)
            )
        warn_of_copies(hashed_files)
        files = [file for *_, file in hashed_files]
        names, per_file = class_names(files, self.label, self.classes)
        index = [
            row
            for number, (split, _, _, file) in enumerate(hashed_files)
            for row in index_file(number, file, split, self.image, self.label, per_file[number])
        ]
        check_divided(root, {row.split for row in index})
        for file in files:
            check_images(file, self.image)
        read = {"columns": [self.image, self.label], "files": [list(entry[:3]) for entry in hashed_files]}
        digest = digest_json(read | ({"classes": list(self.classes)} if self.classes else {}))
        index_folder = listing_folder(folder, root, digest)
        write_index(
            index_folder,
            index,
            Notes(
                image=self.image,
                files=[str(file) for file in files],
                sizes=[entry[2] for entry in hashed_files],
            ),
        )
        return SourceFiles(
            kind="parquet",
            root=str(index_folder),
            origin=str(root),
            digest=digest,
            files=len(files),
            bytes=sum(size for _, _, size, _ in hashed_files),
            classes=names or class_order({row.label for row in index}),
        )

    def count(self, files: SourceFiles, split: str) -> int:
        """Number of rows of `split`."""
        return len(_index(files, split, ["row"]))

    def splits(self, files: SourceFiles) -> Sequence[str]:
        """("train", "test") with or without "val", or ("",) when neither files nor a column `split` give splits."""
        names = pq.read_table(Path(files.root) / _INDEX, columns=["split"])["split"].unique().to_pylist()
        return in_order(names)

    def read(self, files: SourceFiles, split: str, rows: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Raw rows, encoded or as pixels as in the files; ascending `rows` need the fewest passes over the files."""
        index = _index(files, split, ["file", "row", "label"])
        chosen = index.take(pa.array(checked_rows(rows, len(index))))
        notes = _read_notes(files)
        labels = chosen["label"].to_pylist()
        kept: list[tuple[int, _Found]] = []
        total = 0
        for position, row in enumerate(_in_order(notes, chosen["file"].to_numpy(), chosen["row"].to_numpy())):
            kept.append((position, row))
            total += len(row.image.content)
            if len(kept) == _CHUNK_ROWS * 4 or total > _BATCH_BYTES:
                yield _batch(kept, labels, split)
                kept, total = [], 0
        if kept:
            yield _batch(kept, labels, split)


class Notes(Record):
    """What reading needs besides the index: the image column, and path and size in bytes of each file."""

    image: str
    files: list[str]
    sizes: list[int]


class _Found(NamedTuple):
    image: RawImage
    where: str


def _batch(kept: list[tuple[int, _Found]], labels: list[str], split: str) -> pa.RecordBatch:
    return raw_batch(
        [row.image for _, row in kept],
        [labels[position] for position, _ in kept],
        split,
        [row.where for _, row in kept],
    )


def check_divided(root: Path, splits: set[str]) -> None:
    """Raise DataError when some rows have a split and others have none, or when train or test is missing."""
    if not is_divided(splits):
        raise DataError(
            f"{root}: rows of {', '.join(sorted(split or 'no split' for split in splits))} only. Give every row "
            "a split, and rows to train and test, or divide none and let data.test_share divide them."
        )


def check_images(file: Path, column: str) -> None:
    """Raise DataError for a column type that can't hold images, else log how the column is interpreted."""
    kind = read_types(file).field(column).type
    try:
        log.info("%s: column %r holds %s", file, column, describe(kind))
    except CellError as error:
        raise DataError(f"{file}: column {column!r} {error}.") from error


def write_index(folder: Path, index: list[IndexedRow], notes: Notes) -> None:
    """Write the index of rows and its notes to `folder`, each file atomically."""
    columns = dict(zip(IndexedRow._fields, map(pa.array, zip(*index, strict=True)), strict=True))
    write_record(folder / _NOTES, notes, folder.name)
    with atomic_file(folder / _INDEX) as aside:
        pq.write_table(pa.table(columns), aside)


def _index(files: SourceFiles, split: str, columns: list[str]) -> pa.Table:
    file = Path(files.root) / _INDEX
    if not file.is_file():
        raise DataError(f"{file}: the index is gone. Run the command again: it reads the labels again.")
    return pq.read_table(file, columns=columns, filters=[("split", "==", split)])


def _read_notes(files: SourceFiles) -> Notes:
    folder = Path(files.root)
    notes = read_record(
        folder / _NOTES, Notes, folder.name, "Run the command again: it reads the labels again."
    )
    for name, size in zip(notes.files, notes.sizes, strict=True):
        if not Path(name).is_file() or Path(name).stat().st_size != size:
            raise DataError(f"{name}: changed since its rows were listed. Run the command again.")
    return notes


def _in_order(notes: Notes, files: Numbers, rows: Numbers) -> Iterator[_Found]:
    """The images of `rows` of `files`, in this order; rows that don't ascend are read in sorted chunks."""
    keys = files * (int(rows.max(initial=0)) + 1) + rows
    if (np.diff(keys) > 0).all():
        yield from _ascending(notes, files, rows)
        return
    for start in range(0, len(rows), _CHUNK_ROWS):
        part = slice(start, start + _CHUNK_ROWS)
        unique, back = np.unique(keys[part], return_inverse=True)
        first = np.searchsorted(keys[part], unique, sorter=(order := np.argsort(keys[part])))
        picked = order[first]
        chunk = list(_ascending(notes, files[part][picked], rows[part][picked]))
        yield from (chunk[position] for position in back.tolist())


def _ascending(notes: Notes, files: Numbers, rows: Numbers) -> Iterator[_Found]:
    for number in np.unique(files).tolist():
        yield from _from_file(Path(notes.files[number]), notes.image, rows[files == number])


def _from_file(file: Path, column: str, rows: Numbers) -> Iterator[_Found]:
    """The images of ascending row numbers; row groups without any of these rows are skipped."""
    with open_parquet(file, memory_map=True) as parquet:
        start = 0
        for group in range(parquet.num_row_groups):
            stop = start + parquet.metadata.row_group(group).num_rows
            wanted = rows[(rows >= start) & (rows < stop)]
            if len(wanted):
                yield from _from_group(parquet, file, group, column, start, wanted)
            start = stop


def _from_group(
    parquet: pq.ParquetFile, file: Path, group: int, column: str, start: int, rows: Numbers
) -> Iterator[_Found]:
    begin = start
    try:
        for batch in parquet.iter_batches(
            rows_to_read(parquet, group, column, _CHUNK_ROWS), row_groups=[group], columns=[column]
        ):
            stop, cell = start + len(batch), cells(batch[column])
            for row in rows[(rows >= start) & (rows < stop)].tolist():
                yield _found(cell, row - start, f"{file} row {row}", column)
            start = stop
            if start > rows[-1]:
                return
    except MemoryError:  # Arrow's own is an ArrowException, too
        raise
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an I/O error of the machine, not a damaged file
        row = begin + _readable_rows(parquet, group, column)
        raise DataError(
            f"{file} row {row}: column {column!r} can't be decoded ({error}): the file is damaged, or the "
            "row is null where Arrow expects a tensor. Write or fetch it again."
        ) from error


def _found(cell: Cell, position: int, where: str, column: str) -> _Found:
    try:
        return _Found(cell(position), where)
    except CellError as error:
        raise DataError(f"{where}: column {column!r} {error}.") from error


def _readable_rows(parquet: pq.ParquetFile, group: int, column: str) -> int:
    """Number of rows of a row group that come before the first row that can't be decoded."""
    count = 0
    with suppress(pa.ArrowException, OSError):
        for _ in parquet.iter_batches(1, row_groups=[group], columns=[column]):
            count += 1
    return count
