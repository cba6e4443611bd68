"""The inputs of batch prediction: files, divided into chunks that any process can read as batches of rows."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy.typing as npt

from training.data.sources.archives import is_archive
from training.data.sources.folder_listing import visible
from training.data.sources.parquet_files import open_parquet
from training.data.sources.plain_files import check_link
from training.errors import DataError
from training.records import Record

PARQUET_SUFFIXES = frozenset({".parquet", ".pq"})
Unit = Literal["images", "rows"]

# Columns: `where` (str, location of the row), `error` (str, "" for a usable row) and `inputs`, the model's input,
# with the rows in the first dimension and arbitrary values for an unusable row. Batches of a table also have
# `unknown` (str): "", or the new categories of the row, as a JSON object by column.
Batch = dict[str, npt.NDArray[Any]]


class Chunk(Record):
    """A unit of reading: some image files, a CSV file, or one row group of a Parquet file.

    `files` are relative to `root`, and `first_row` is the number of rows before the row group.
    """

    root: str
    files: tuple[str, ...]
    rows: int
    row_group: int | None = None
    first_row: int = 0


class Reader(Protocol):
    """Reads the inputs of a model. A reader is sent to other processes, so a reader must support pickle."""

    @property
    def unit(self) -> Unit:
        """The noun for rows in messages."""

    @property
    def ray_from_rows(self) -> int:
        """Number of rows from which scoring on Ray saves time, although starting Ray takes about 10 s."""

    @property
    def rows_at_once(self) -> int:
        """Largest number of rows that the model scores at once."""

    def find(self, path: Path) -> list[Chunk]:
        """Find all chunks to read at `path`, sorted by path; the order depends on names alone.

        Raises :class:`DataError` when there is nothing to read, or a file is unusable.
        """

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        """Read a chunk as batches. An unusable row does not stop the reading: its `error` has the reason."""


def input_files(path: Path, remedy: str) -> tuple[Path, list[str]]:
    """A folder, and the files to read at `path`, sorted, relative to that folder.

    Raises :class:`DataError` for an archive, for a link without a suffix that leads to nothing, and for a pipe or
    device. Only the message about a pipe or device ends with `remedy`.
    """
    if path.is_file():
        if is_archive(path):
            raise DataError(f"{path}: an archive. Unpack it, and give the folder that it makes.")
        return path.parent, [path.name]
    if not path.is_dir():
        raise DataError(f"{path}: neither a plain file nor a folder. {remedy}")
    return path, sorted(_walk(path))


def with_suffix(names: list[str], suffixes: Collection[str]) -> list[str]:
    """The names that end in one of `suffixes`, in upper or lower case."""
    return [name for name in names if Path(name).suffix.lower() in suffixes]


def _walk(root: Path) -> Iterator[str]:
    """Paths of the files below `root`, relative to `root`; follows links, but enters each folder only once."""
    seen: set[str] = set()
    queue = [root]
    while queue:
        folder = queue.pop()
        if (real := os.path.realpath(folder)) in seen:
            continue
        seen.add(real)
        for entry in visible(folder):
            if entry.is_dir():
                queue.append(Path(entry.path))
            else:
                if not Path(entry.name).suffix:  # it may have led to a folder, whose rows would be left out
                    check_link(Path(entry.path))
                yield _name(entry, root)


def _name(entry: "os.DirEntry[str]", root: Path) -> str:
    try:
        entry.path.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{entry.path!r}: its name is not UTF-8, which the result must be. Rename it."
        ) from error
    return Path(entry.path).relative_to(root).as_posix()


def parquet_chunks(root: Path, name: str) -> list[Chunk]:
    """The row groups of a Parquet file that have rows. Raises :class:`DataError` for a file that is not Parquet."""
    with open_parquet(root / name) as parquet:
        metadata = parquet.metadata
    chunks, first = [], 0
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if rows:
            chunks.append(Chunk(root=str(root), files=(name,), rows=rows, row_group=group, first_row=first))
        first += rows
    return chunks
