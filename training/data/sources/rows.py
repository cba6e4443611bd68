"""Build batches of raw rows, of bounded size."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.sources import RAW_SCHEMA

UInt8 = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

_MAX_ROWS = 8192
_MAX_BYTES = 64 << 20


class RawImage(NamedTuple):
    """One image: an encoded file (height, width, channels are 0), or raw uint8 pixels, row by row, channel last."""

    content: bytes
    height: int = 0
    width: int = 0
    channels: int = 0


def raw_pixels(pixels: UInt8) -> RawImage:
    """The raw image of a pixel array of shape (height, width, channels)."""
    height, width, channels = pixels.shape
    return RawImage(pixels.tobytes(), height, width, channels)


def raw_batch(
    images: Sequence[RawImage], labels: Sequence[str], split: str, where: Sequence[str]
) -> pa.RecordBatch:
    """A batch of images in the schema of raw rows (`RAW_SCHEMA`)."""
    content, heights, widths, channels = zip(*images, strict=True)
    columns = [content, heights, widths, channels, labels, [split] * len(images), where]
    arrays = [pa.array(values, kind) for values, kind in zip(columns, RAW_SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RAW_SCHEMA)


def pixel_batch(pixels: UInt8, labels: Sequence[str], split: str, where: Sequence[str]) -> pa.RecordBatch:
    """A batch of images of one size, (rows, height, width, channels), without a loop over images."""
    rows, *size = pixels.shape
    flat = np.ascontiguousarray(pixels)
    width = flat.nbytes // max(1, rows)
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    content = pa.BinaryArray.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(flat)]
    )
    sizes = [pa.array(np.full(rows, side, np.int32)) for side in size]
    texts = [pa.array(values, pa.string()) for values in (labels, [split] * rows, where)]
    return pa.RecordBatch.from_arrays([content, *sizes, *texts], schema=RAW_SCHEMA)


def checked_rows(rows: Sequence[int], count: int) -> Numbers:
    """Row numbers as an array. Raises IndexError, which is the caller's bug, for a number outside range(count)."""
    numbers = np.asarray(rows, dtype=np.int64)
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < count:
        raise IndexError(f"row numbers from {numbers.min()} to {numbers.max()} asked of {count} rows")
    return numbers


def cut(sizes: Numbers) -> Iterator[slice]:
    """Cut rows of the given sizes in bytes into batches of at most 8,192 rows and about 64 MiB."""
    start, total = 0, 0
    for position, size in enumerate(sizes.tolist()):
        if position > start and (position - start >= _MAX_ROWS or total + size > _MAX_BYTES):
            yield slice(start, position)
            start, total = position, 0
        total += size
    if start < len(sizes):
        yield slice(start, len(sizes))
