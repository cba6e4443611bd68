"""Convert raw rows to pixels: decode, convert, resize, check. An unusable row is reported with the reason."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.sources.wording import counted
from training.records import ImageShape

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = npt.NDArray[np.uint8]

# Only these formats: Pillow detects dozens of formats by content, whatever the file's name, and some of its decoders
# start other programs, such as Ghostscript for EPS.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_MOST_PIXELS = 100_000_000
# Pillow's modes of integers of 16 or 32 bits, such as I;16B, and of floating-point numbers.
_DEEP = ("I", "F")


@dataclass(frozen=True)
class Target:
    """Size, channels and shape that every image must get; with `None`, the first image's property applies to all."""

    image_size: int | None
    channels: int | None
    shape: ImageShape | None = None


@dataclass(frozen=True)
class Decoded:
    """Pixels of the usable rows, (rows, channels, height, width), their row numbers, and why others can't be used.

    `digests`, (rows, 16) bytes, are the first halves of the sha256 of each image's pixels before they were converted
    and resized; None when no image was.
    """

    pixels: Pixels
    good: npt.NDArray[np.int64]
    bad: tuple[str, ...]
    digests: Pixels | None = None


class BadImage(Exception):
    """A row's image can't be used; the message is the reason, without the row's location."""


def first_shape(rows: pa.RecordBatch, target: Target) -> ImageShape | None:
    """Shape of the first readable row's pixels, converted to `target`; None when no row is readable."""
    for index in range(rows.num_rows):
        try:
            return _decode_row(rows, index, target).shape
        except BadImage:
            continue
    return None


def none_readable(rows: pa.RecordBatch, target: Target) -> str:
    """Message text for rows of which none is readable, without the name of the source; gives the first row's reason."""
    try:
        _decode_row(rows, 0, target)
    except BadImage as error:
        first = f"{rows['where'][0].as_py()}: {error}"
        return f"none of the images can be read, so there is nothing to learn from. The first is {first}."
    raise AssertionError("the first row is readable")


def decode(rows: pa.RecordBatch, target: Target) -> Decoded:
    """Decode all rows of a batch of raw rows (`training.data.sources.RAW_SCHEMA`) to pixels of `target.shape`."""
    assert target.shape is not None
    if (fast := _all_raw(rows, target.shape)) is not None:
        return Decoded(fast, np.arange(len(fast)), ())
    kept: list[Pixels] = []
    own: list[bytes] = []  # digests; empty for an image whose pixels stayed as they are
    good, bad = [], []
    for index in range(rows.num_rows):
        try:
            image = _open_row(rows, index)
            pixels = to_pixels(image, target)
            if pixels.shape != target.shape:
                raise BadImage(_unlike_the_others(pixels.shape, target.shape))
        except BadImage as error:
            bad.append(f"{rows['where'][index].as_py()}: {error}")
        else:
            kept.append(pixels)
            own.append(b"" if _is_unchanged(image, target) else _digest(_own_pixels(image)))
            good.append(index)
    stacked = np.stack(kept) if kept else np.empty((0, *target.shape), np.uint8)
    digests = None
    if any(own):
        digests = _joined(digest or _digest(pixels) for digest, pixels in zip(own, kept, strict=True))
    return Decoded(stacked, np.array(good, np.int64), tuple(bad), digests)


def pixel_digests(images: Pixels) -> Pixels:
    """(rows, 16) bytes: first half of the sha256 of each image's pixels."""
    return _joined(map(_digest, images))


def _digest(pixels: Pixels) -> bytes:
    return hashlib.sha256(pixels.data).digest()[:16]


def _joined(digests: Iterable[bytes]) -> Pixels:
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16)


def _is_unchanged(image: "Image", target: Target) -> bool:
    """Whether :func:`to_pixels` gives the pixels of the image itself."""
    size_stays = not target.image_size or image.size == (target.image_size, target.image_size)
    return size_stays and image.mode in (
        {1: ("L",), 3: ("RGB", "P")}.get(target.channels or 0) or ("L", "RGB", "P")
    )


def _own_pixels(image: "Image") -> Pixels:
    """The pixels of an image as no setting changes them; of a mode that needs `data.channels`, in that mode."""
    if image.mode in ("L", "RGB", "P"):
        return to_pixels(image, Target(None, None))
    return np.frombuffer(image.mode.encode() + image.tobytes(), np.uint8)


def _all_raw(rows: pa.RecordBatch, shape: ImageShape) -> Pixels | None:
    """Pixels of the whole batch by one reshape, or None when not every row holds raw pixels of the right shape."""
    channels, height, width = shape
    for name, wanted in (("height", height), ("width", width), ("channels", channels)):
        if rows.num_rows == 0 or not (rows[name].to_numpy() == wanted).all():
            return None
    images = rows["image"]
    offsets = np.frombuffer(images.buffers()[1], np.int32)[images.offset : images.offset + len(images) + 1]
    if not (np.diff(offsets) == channels * height * width).all():
        return None
    flat = np.frombuffer(images.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    return np.ascontiguousarray(flat.reshape(-1, height, width, channels).transpose(0, 3, 1, 2))


def _decode_row(rows: pa.RecordBatch, index: int, target: Target) -> Pixels:
    return to_pixels(_open_row(rows, index), target)


def _open_row(rows: pa.RecordBatch, index: int) -> "Image":
    data: bytes = rows["image"][index].as_py()
    height, width, channels = (rows[name][index].as_py() for name in ("height", "width", "channels"))
    return open_image(data, height, width, channels)


def open_image(data: bytes, height: int = 0, width: int = 0, channels: int = 0) -> "Image":
    """Open an encoded file (height 0), or raw pixels of the given size, as a Pillow image.

    Raises :class:`BadImage` when the bytes are not a complete image of a known format, when an encoded image has over
    100 million pixels, or when raw pixels have another size.
    """
    from PIL import Image, UnidentifiedImageError

    if not data:
        raise BadImage("has zero bytes")
    if not height:
        try:
            image = Image.open(BytesIO(data), formats=_FORMATS)
            _check_size(*image.size)  # before pixels are allocated: a few bytes can declare gigabytes
            image.load()
        except (BadImage, MemoryError):  # too little memory says nothing about the image
            raise
        except UnidentifiedImageError:
            raise BadImage(f"is not a readable image (of no known format: {', '.join(_FORMATS)})") from None
        except Exception as error:  # Pillow's decoders raise many types, even struct.error
            raise BadImage(f"is not a readable image ({error})") from None
        return image
    if len(data) != height * width * channels:
        raise BadImage(
            f"has {counted(len(data), 'byte')}, {height}x{width}x{channels} pixels need {height * width * channels}"
        )
    grid = np.frombuffer(data, np.uint8).reshape(
        (height, width) if channels == 1 else (height, width, channels)
    )
    return Image.fromarray(grid)


def _check_size(width: int, height: int) -> None:
    if width * height > _MOST_PIXELS:
        raise BadImage(f"has {width:,}x{height:,} pixels; an image may have {_MOST_PIXELS:,}")


def to_pixels(image: "Image", target: Target) -> Pixels:
    """Convert and resize a Pillow image as `target` asks; returns uint8 of shape (channels, height, width).

    Raises :class:`BadImage` for a colour mode that `target` does not convert, and for pixels of more than 8 bits.
    """
    from PIL import Image

    if image.mode.startswith(_DEEP):  # Pillow would cut every value at 255, so most pixels would become white
        raise BadImage(
            f"has colour mode {image.mode}, so more than 8 bits for each pixel's value, and images have 8; convert "
            "the image to 8 bits"
        )
    if target.channels:
        try:
            image = image.convert("L" if target.channels == 1 else "RGB")
        except ValueError as error:
            raise BadImage(f"has colour mode {image.mode}, which can't be converted ({error})") from None
    elif image.mode == "P":
        image = image.convert("RGB")
    elif image.mode not in ("L", "RGB"):
        raise BadImage(f"has colour mode {image.mode}; set data.channels to 1 or 3 to convert it")
    if target.image_size and image.size != (target.image_size, target.image_size):
        image = image.resize((target.image_size, target.image_size), Image.Resampling.BILINEAR)
    grid = np.asarray(image, np.uint8)
    return grid[None] if grid.ndim == 2 else np.ascontiguousarray(grid.transpose(2, 0, 1))


def _unlike_the_others(shape: tuple[int, ...], others: ImageShape) -> str:
    """Message text: how the shapes differ, and the settings that give all images the same shape."""
    remedies = []
    if shape[1:] != others[1:]:
        remedies.append("data.image_size resizes all images to one size")
    if shape[0] != others[0]:
        remedies.append("data.channels=1 or 3 converts all images to grey or RGB")
    return f"is {_words(shape)}, the others are {_words(others)}; {' and '.join(remedies)}"


def _words(shape: tuple[int, ...]) -> str:
    return f"{shape[1]}x{shape[2]} pixels with {counted(shape[0], 'channel')}"


def binary_to_numpy(column: pa.ChunkedArray, dtype: Any) -> npt.NDArray[Any]:
    """A fixed-width binary column as one array of shape (rows, width / itemsize), without a loop over values."""
    width = column.type.byte_width
    chunks = [
        np.frombuffer(chunk.buffers()[1], np.uint8)[
            chunk.offset * width : (chunk.offset + len(chunk)) * width
        ]
        for chunk in column.chunks
    ]
    flat: npt.NDArray[Any] = np.concatenate(chunks) if len(chunks) != 1 else chunks[0]
    rows: npt.NDArray[Any] = flat.view(dtype).reshape(len(column), -1)
    return rows
