"""Convert the cells of a Parquet image column to raw images.

Supported are encoded files (binary, or Hugging Face's struct of bytes and path) and numbers 0..255, as fixed-shape
tensors or nested lists: height x width, height x width x channels or channels x height x width.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from training.data.sources.rows import RawImage, UInt8, raw_pixels
from training.records import ImageShape

Cell = Callable[[int], RawImage]


class CellError(ValueError):
    """A cell breaks a rule; the message says which rule, and the caller adds file and row."""


def describe(kind: pa.DataType) -> str:
    """Describe for people the images in a column of type `kind`; raises CellError when it can't hold images."""
    if _is_binary(kind):
        return "encoded image files"
    if (
        pa.types.is_struct(kind)
        and kind.get_field_index("bytes") >= 0
        and _is_binary(kind.field("bytes").type)
    ):
        return "encoded image files in structs"
    if isinstance(kind, pa.FixedShapeTensorType):
        _check_number(kind.value_type)
        return f"tensors of shape {_order(tuple(kind.shape))}"
    if _is_list(kind):
        depth, inner = 0, kind
        while _is_list(inner):
            depth, inner = depth + 1, inner.value_type
        _check_number(inner)
        if depth in (2, 3):
            return f"lists nested {depth} deep"
        raise CellError(
            f"is a list nested {depth} deep, which has no height and width: nest it, "
            "or store a fixed-shape tensor"
        )
    raise CellError(f"is of type {kind}; images are binary, fixed-shape tensors or nested lists")


def cells(column: pa.Array, shape: ImageShape | None = None) -> Cell:
    """A function that returns the image at a position in `column`, or raises :class:`CellError`.

    `shape` (channels, height, width) is the shape of images in fixed-width binary, whose type does not include it.
    """
    kind = column.type
    if pa.types.is_fixed_size_binary(kind) and shape is not None:
        return lambda row: _fixed_width(column[row].as_py(), shape)
    if _is_binary(kind):
        return lambda row: _encoded(column[row].as_py())
    if pa.types.is_struct(kind):
        return lambda row: _embedded(column[row].as_py() or {})
    if isinstance(kind, pa.FixedShapeTensorType):
        return lambda row: raw_pixels(_pixels(_tensor(column, row)))
    return lambda row: raw_pixels(_pixels(_nested(column[row])))


def all_pixels(column: pa.Array, shape: ImageShape) -> UInt8 | None:
    """All images of `column` at once, (rows, channels, height, width), when they already are uint8 of `shape`.

    Supported are fixed-shape tensors, and fixed-width binary with the channel first, as in a dataset version. None
    when the rows have to be converted one by one.
    """
    kind = column.type
    if pa.types.is_fixed_size_binary(kind):
        if column.null_count or kind.byte_width != math.prod(shape):
            return None
        start = column.offset * kind.byte_width
        flat = np.frombuffer(column.buffers()[1], np.uint8, len(column) * kind.byte_width, start)
        return flat.reshape(len(column), *shape)
    plain = isinstance(kind, pa.FixedShapeTensorType) and kind.value_type == pa.uint8()
    if not plain or column.null_count or column.storage.flatten().null_count:
        return None
    images: UInt8 = column.to_numpy_ndarray()
    order = _order(images.shape[1:])
    if order == "height x width":
        images = images[:, None]
    elif order == "height x width x channels":
        images = np.moveaxis(images, -1, 1)
    return np.ascontiguousarray(images) if images.shape[1:] == shape else None


def _fixed_width(content: bytes | None, shape: ImageShape) -> RawImage:
    if content is None:
        raise CellError("is null")
    return raw_pixels(np.frombuffer(content, np.uint8).reshape(shape).transpose(1, 2, 0))


def _embedded(cell: dict[str, Any]) -> RawImage:
    """The image in a cell as Hugging Face's `datasets` writes it, with `bytes` and `path`."""
    if cell.get("bytes") is None and cell.get("path"):
        raise CellError("has no bytes, only a path: write the images themselves into the file")
    return _encoded(cell.get("bytes"))


def _encoded(content: bytes | None) -> RawImage:
    return RawImage(content or b"")  # decoding refuses an image of zero bytes as one that can't be read


def _tensor(column: pa.ExtensionArray, row: int) -> npt.NDArray[Any]:
    if not column[row].is_valid:
        raise CellError("is null")
    cell = column.slice(row, 1)
    if cell.storage.flatten().null_count:
        raise CellError("has a pixel that is null")
    values: npt.NDArray[Any] = cell.to_numpy_ndarray()[0]
    return values


def _nested(cell: pa.Scalar) -> npt.NDArray[Any]:
    if not cell.is_valid:
        raise CellError("is null")
    values = cell.values
    shape = [len(values)]
    while _is_list(values.type):
        lengths = pc.unique(pc.list_value_length(values)).to_pylist()
        if len(lengths) != 1 or not lengths[0]:
            raise CellError("is ragged: its lists differ in length, are empty or null")
        shape.append(lengths[0])
        values = values.flatten()
    if values.null_count:
        raise CellError("has a pixel that is null")
    if not len(values):
        raise CellError("has no pixels")
    flat: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return flat.reshape(shape)


def _pixels(values: npt.NDArray[Any]) -> UInt8:
    """Numbers as uint8 of shape (height, width, channels)."""
    if not np.isfinite(values).all():
        raise CellError("has a pixel that is NaN or infinite")
    low, high = values.min(), values.max()
    if low < 0 or high > 255:
        raise CellError(f"has pixels from {low:g} to {high:g}, outside of 0 to 255")
    whole = np.rint(values)
    if high <= 1 and not np.array_equal(whole, values):
        raise CellError("has fractions between 0 and 1: pixels go from 0 to 255, so multiply by 255 first")
    return _channels_last(whole.astype(np.uint8))


def _channels_last(values: UInt8) -> UInt8:
    order = _order(values.shape)
    if order == "height x width":
        return values[..., None]
    return values if order == "height x width x channels" else np.moveaxis(values, 0, -1)


def _order(shape: tuple[int, ...]) -> str:
    """The meaning of an image's axes: the channel axis is the last or else the first of length 1 or 3, else of 4."""
    if not all(shape):
        raise CellError(f"has shape {shape}, which holds no pixels")
    if len(shape) == 2:
        return "height x width"
    if len(shape) == 3:
        for channels in ((1, 3), (4,)):
            if shape[-1] in channels:
                return "height x width x channels"
            if shape[0] in channels:
                return "channels x height x width"
    raise CellError(f"has shape {shape}; images are height x width, with 1, 3 or 4 channels last or first")


def _is_binary(kind: pa.DataType) -> bool:
    known = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    return bool(known)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _check_number(kind: pa.DataType) -> None:
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise CellError(f"holds pixels of type {kind}; they must be numbers from 0 to 255")
