"""In: a folder of image files at any depth, or Parquet. Out: uint8 batches of one shape, in the order of their paths.

The input is first divided into chunks without reading pixels; any process can then read any chunk. An unusable image
does not stop the reading: its row contains the reason. Fails with DataError when there is nothing to read or a
Parquet file is damaged.
"""

import logging
import math
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.inference.inputs import (
    PARQUET_SUFFIXES,
    Batch,
    Chunk,
    Unit,
    input_files,
    parquet_chunks,
    with_suffix,
)
from training.data.images.decoding import BadImage, Pixels, Target, open_image, to_pixels
from training.data.sources.folder_listing import IMAGE_SUFFIXES
from training.data.sources.parquet_files import open_parquet, rows_to_read
from training.data.sources.parquet_pixels import CellError, all_pixels, cells, describe
from training.data.sources.plain_files import NotPlainError, check_plain, read_plain
from training.errors import DataError
from training.records import ImageShape

log = logging.getLogger("evergreen.predict")

IMAGE_COLUMN = "image"
_CHUNK_FILES = 256
_READ_ROWS = 512
_BATCH_ROWS = 512
_BATCH_BYTES = 32 << 20


@dataclass(frozen=True)
class Images:
    """Reads the inputs of a model that takes uint8 images of `shape` (channels, height, width)."""

    shape: ImageShape
    unit: Unit = "images"
    ray_from_rows: int = 2000

    @property
    def rows_at_once(self) -> int:
        """Largest number of images that the model scores at once."""
        return rows_per_batch(self.shape)

    def find(self, path: Path) -> list[Chunk]:
        """See :func:`find_chunks`."""
        return find_chunks(path)

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        """See :func:`read_chunk`."""
        return read_chunk(chunk, self.shape)


def find_chunks(path: Path) -> list[Chunk]:
    """Find all chunks to read at `path`, sorted by path; the order depends on names alone.

    Raises :class:`DataError` when there is nothing to read, when there are both image files and Parquet files, and
    when a Parquet file is unusable.
    """
    root, names = input_files(path, "Give image files, Parquet, or a folder of them.")
    images, tables = with_suffix(names, IMAGE_SUFFIXES), with_suffix(names, PARQUET_SUFFIXES)
    if images and tables:
        raise DataError(
            f"{path}: holds image files and Parquet ({images[0]}, {tables[0]}). Give one kind at a time."
        )
    if not images and not tables:
        kinds = ", ".join(sorted(IMAGE_SUFFIXES | PARQUET_SUFFIXES))
        raise DataError(f"{path}: nothing to score. There must be files that end in one of {kinds}.")
    others = sorted(set(names) - set(images) - set(tables))
    if others:
        log.warning("%s: %d files of other formats are ignored, such as %s", path, len(others), others[0])
    return _file_chunks(root, images) if images else _parquet_chunks(root, tables)


def read_chunk(chunk: Chunk, shape: ImageShape) -> Iterator[Batch]:
    """Read a chunk as batches, every image as uint8 of `shape` (channels, height, width)."""
    channels, height, width = shape
    # Training resizes only to squares, so images for a model with another shape must already have that shape.
    target = Target(height if height == width else None, channels, shape)
    if chunk.row_group is None:
        yield from _in_batches(_file_rows(chunk), target)
        return
    for column, first_row in _columns(chunk, shape):
        pixels = all_pixels(column, shape)
        if pixels is None:
            yield from _in_batches(_cell_rows(chunk, column, first_row, shape), target)
        else:
            where = [f"{chunk.files[0]}:{row}" for row in range(first_row, first_row + len(pixels))]
            yield _batch(where, [""] * len(where), pixels)


def _in_batches(source: "Iterable[_Row]", target: Target) -> Iterator[Batch]:
    """Convert rows one at a time, since images may differ in size and format, and stack them into batches."""
    assert target.shape is not None
    shape = target.shape
    rows: list[tuple[str, str, Pixels]] = []
    for where, name, load in source:
        try:
            rows.append((where, "", _to_shape(load(), target)))
        except BadImage as error:
            rows.append((where, f"{name}: {error}", np.zeros(shape, np.uint8)))
        if len(rows) == rows_per_batch(shape):
            yield _stacked(rows)
            rows = []
    if rows:
        yield _stacked(rows)


def rows_per_batch(shape: ImageShape) -> int:
    """Number of rows that the model scores at once: at most 512 rows, and about 32 MiB of pixels."""
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // math.prod(shape)))


# One row: its location in the result, its location in messages, and a function that reads the image.
_Row = tuple[str, str, Callable[[], Any]]


def _file_chunks(root: Path, names: list[str]) -> list[Chunk]:
    cuts = range(0, len(names), _CHUNK_FILES)
    parts = [tuple(names[start : start + _CHUNK_FILES]) for start in cuts]
    return [Chunk(root=str(root), files=part, rows=len(part)) for part in parts]


def _parquet_chunks(root: Path, names: list[str]) -> list[Chunk]:
    chunks: list[Chunk] = []
    for name in names:
        file = root / name
        check_plain(file)
        with open_parquet(file) as parquet:
            _check_column(file, parquet)
        chunks += parquet_chunks(root, name)
    if not chunks:
        raise DataError(f"{root / names[0]}: has no rows, so there is nothing to score.")
    return chunks


def _check_column(file: Path, parquet: pq.ParquetFile) -> None:
    schema = parquet.schema_arrow
    if IMAGE_COLUMN not in schema.names:
        raise DataError(
            f"{file}: no column {IMAGE_COLUMN!r}; there are {', '.join(schema.names)}. Rename the one with the images."
        )
    kind = schema.field(IMAGE_COLUMN).type
    if pa.types.is_fixed_size_binary(kind):
        # A dataset version stores images in this type; :func:`_columns` compares its width with the model's input.
        return
    try:
        describe(kind)
    except CellError as error:
        raise DataError(f"{file}: column {IMAGE_COLUMN!r} {error}.") from error


def _file_rows(chunk: Chunk) -> Iterator[_Row]:
    for name in chunk.files:
        path = Path(chunk.root) / name
        yield name, str(path), partial(_open_file, path)


def _open_file(path: Path) -> Any:
    try:
        content = read_plain(path)
    except (FileNotFoundError, PermissionError) as error:
        if isinstance(error, FileNotFoundError) and not os.path.lexists(path):
            raise DataError(
                f"{path}: not on {socket.gethostname()}, although the file was there when the files were listed. "
                "Keep the input until the command ends; on a cluster, keep it on a disk that all machines share."
            ) from error
        raise BadImage(f"can't be read ({error.strerror})") from error
    except NotPlainError as error:
        raise BadImage(str(error)) from error
    return open_image(content)


def _columns(chunk: Chunk, shape: ImageShape) -> Iterator[tuple[pa.Array, int]]:
    """Parts of a row group's image column, each with the number of its first row."""
    first, file = chunk.first_row, Path(chunk.root) / chunk.files[0]
    with open_parquet(file, memory_map=True, page_checksum_verification=True) as parquet:
        kind = parquet.schema_arrow.field(IMAGE_COLUMN).type
        if pa.types.is_fixed_size_binary(kind) and kind.byte_width != math.prod(shape):
            raise DataError(
                f"{file}: column {IMAGE_COLUMN!r} has {kind.byte_width} bytes an image; the model takes {shape} "
                f"(channels, height, width), {math.prod(shape)} bytes. Give images of that size, or encoded ones."
            )
        assert chunk.row_group is not None
        most = min(_READ_ROWS, rows_per_batch(shape))
        rows = rows_to_read(parquet, chunk.row_group, IMAGE_COLUMN, most)
        for batch in parquet.iter_batches(rows, row_groups=[chunk.row_group], columns=[IMAGE_COLUMN]):
            yield batch[IMAGE_COLUMN], first
            first += len(batch)


def _cell_rows(chunk: Chunk, column: pa.Array, first_row: int, shape: ImageShape) -> Iterator[_Row]:
    name, cell = chunk.files[0], cells(column, shape)
    for position in range(len(column)):
        row = first_row + position
        yield f"{name}:{row}", f"{Path(chunk.root) / name} row {row}", partial(_open_cell, cell, position)


def _open_cell(cell: Callable[[int], Any], position: int) -> Any:
    try:
        raw = cell(position)
    except CellError as error:
        raise BadImage(str(error)) from error
    return open_image(raw.content, raw.height, raw.width, raw.channels)


def _to_shape(image: Any, target: Target) -> Pixels:
    pixels = to_pixels(image, target)
    if pixels.shape != target.shape:
        raise BadImage(f"has shape {pixels.shape}, the model takes {target.shape} (channels, height, width)")
    return pixels


def _stacked(rows: Iterable[tuple[str, str, Pixels]]) -> Batch:
    where, error, image = zip(*rows, strict=True)
    return _batch(where, error, np.stack(image))


def _batch(where: Sequence[str], error: Sequence[str], image: Pixels) -> Batch:
    return {"where": np.array(where, object), "error": np.array(error, object), "inputs": image}
