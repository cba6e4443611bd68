"""Decode raw rows to pixels, or report why that is not possible."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from training.data.images.decoding import BadImage, Target, decode, first_shape, open_image, to_pixels
from training.data.sources.rows import RawImage, raw_batch, raw_pixels

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (6, 4, 1)).astype(np.uint8)
COLOUR = RNG.integers(0, 256, (6, 4, 3)).astype(np.uint8)
AS_IT_IS = Target(None, None)


def encoded(pixels: np.ndarray, kind: str = "PNG", **options: object) -> bytes:
    out = BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(out, kind, **options)
    return out.getvalue()


def batch(*images: RawImage):
    names = [f"file {number}" for number in range(len(images))]
    return raw_batch(images, ["cat"] * len(images), "train", names)


def decoded(*images: RawImage, target: Target = AS_IT_IS):
    rows = batch(*images)
    return decode(rows, Target(target.image_size, target.channels, first_shape(rows, target)))


@pytest.mark.parametrize("pixels", [GREY, COLOUR], ids=["grey", "colour"])
@pytest.mark.parametrize("raw", [True, False])
def test_pixels_come_out_channels_first(pixels: np.ndarray, raw: bool) -> None:
    image = raw_pixels(pixels) if raw else RawImage(encoded(pixels))
    result = decoded(image, image)
    assert result.pixels.dtype == np.uint8
    assert np.array_equal(result.pixels, np.stack([pixels.transpose(2, 0, 1)] * 2))
    assert (result.good.tolist(), result.bad) == ([0, 1], ())


@pytest.mark.parametrize("pixels", [GREY, COLOUR], ids=["grey", "colour"])
def test_raw_rows_mixed_with_files_are_the_same_pixels(pixels: np.ndarray) -> None:
    other = RNG.integers(0, 256, pixels.shape).astype(np.uint8)
    result = decoded(raw_pixels(pixels), RawImage(encoded(other)), raw_pixels(other))
    expected = [array.transpose(2, 0, 1) for array in (pixels, other, other)]
    assert np.array_equal(result.pixels, np.stack(expected))


def test_a_slice_of_raw_rows_is_that_slice() -> None:
    images = [raw_pixels(RNG.integers(0, 256, (6, 4, 1)).astype(np.uint8)) for _ in range(5)]
    rows = batch(*images).slice(2, 2)
    result = decode(rows, Target(None, None, (1, 6, 4)))
    expected = [np.frombuffer(image.content, np.uint8).reshape(1, 6, 4) for image in images[2:4]]
    assert np.array_equal(result.pixels, np.stack(expected))


def test_channels_are_converted() -> None:
    grey = decoded(RawImage(encoded(COLOUR)), target=Target(None, 1)).pixels
    assert grey.shape == (1, 1, 6, 4)
    # ITU-R 601-2 luma, which Pillow computes in integers
    luma = COLOUR @ np.array([0.299, 0.587, 0.114])
    assert np.abs(grey[0, 0] - luma).max() <= 1
    colour = decoded(raw_pixels(GREY), target=Target(None, 3)).pixels
    assert np.array_equal(colour[0], np.repeat(GREY.transpose(2, 0, 1), 3, axis=0))


@pytest.mark.parametrize("raw", [True, False])
def test_images_are_resized(raw: bool) -> None:
    flat = np.full((6, 4, 1), 77, np.uint8)
    image = raw_pixels(flat) if raw else RawImage(encoded(flat))
    assert np.array_equal(decoded(image, target=Target(5, None)).pixels, np.full((1, 1, 5, 5), 77))


def test_a_palette_is_looked_up() -> None:
    out = BytesIO()
    Image.fromarray(COLOUR).quantize(8).save(out, "PNG")
    assert decoded(RawImage(out.getvalue())).pixels.shape == (1, 3, 6, 4)


WHOLE = encoded(GREY)
JPEG = encoded(RNG.integers(0, 256, (64, 64, 3)).astype(np.uint8), "JPEG")


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (RawImage(b""), "has zero bytes"),
        (RawImage(b"not an image"), "is not a readable image"),
        (RawImage(WHOLE[: len(WHOLE) // 2]), "is not a readable image"),
        (RawImage(JPEG[: len(JPEG) // 2]), "is not a readable image"),
        (RawImage(WHOLE[:20] + b"\xff" * 8 + WHOLE[28:]), "is not a readable image"),
        (RawImage(bytes(23), 6, 4, 1), "has 23 bytes, 6x4x1 pixels need 24"),
        (raw_pixels(COLOUR), "is 6x4 pixels with 3 channels, the others are 6x4 pixels with 1 channel"),
        (raw_pixels(GREY[:5]), "is 5x4 pixels with 1 channel, the others are 6x4 pixels with 1 channel"),
    ],
)
def test_a_bad_row_is_named_and_the_others_are_kept(image: RawImage, reason: str) -> None:
    result = decoded(raw_pixels(GREY), image, raw_pixels(GREY))
    assert result.good.tolist() == [0, 2]
    assert result.pixels.shape == (2, 1, 6, 4)
    (said,) = result.bad
    assert said.startswith(f"file 1: {reason}")


def test_transparency_needs_a_decision() -> None:
    rgba = Image.fromarray(np.dstack([COLOUR, GREY]))
    with pytest.raises(BadImage, match=r"colour mode RGBA; set data\.channels"):
        to_pixels(rgba, AS_IT_IS)
    assert np.array_equal(to_pixels(rgba, Target(None, 3)), COLOUR.transpose(2, 0, 1))


DEEP = {
    "I;16": ("PNG", np.uint16),
    "I": ("TIFF", np.int32),
    "F": ("TIFF", np.float32),
}


@pytest.mark.parametrize("channels", [None, 1, 3])
@pytest.mark.parametrize("mode", DEEP)
def test_more_than_8_bits_are_refused(mode: str, channels: int | None) -> None:
    kind, dtype = DEEP[mode]
    image = Image.fromarray(GREY[..., 0].astype(dtype) * 100)
    out = BytesIO()
    image.save(out, kind)
    assert open_image(out.getvalue()).mode == mode
    rows = batch(raw_pixels(GREY), RawImage(out.getvalue()))
    result = decode(rows, Target(None, channels, (channels or 1, 6, 4)))
    assert result.good.tolist() == [0]
    assert result.bad[0].startswith(f"file 1: has colour mode {mode}, so more than 8 bits")
    assert "convert the image to 8 bits" in result.bad[0]


def test_a_big_endian_tiff_and_a_pgm_of_16_bits_are_refused() -> None:
    with pytest.raises(BadImage, match=r"colour mode I;16B.*convert the image to 8 bits"):
        to_pixels(Image.new("I;16B", (4, 6)), Target(None, 1))
    content = b"P5 4 6 65535\n" + (GREY[..., 0].astype(">u2") * 256).tobytes()
    with pytest.raises(BadImage, match=r"colour mode I.*convert the image to 8 bits"):
        to_pixels(open_image(content), Target(None, 1))


def test_the_first_readable_row_gives_the_shape() -> None:
    rows = batch(RawImage(b""), RawImage(b"junk"), raw_pixels(COLOUR), raw_pixels(GREY))
    assert first_shape(rows, AS_IT_IS) == (3, 6, 4)
    assert first_shape(rows, Target(8, 1)) == (1, 8, 8)
    assert first_shape(batch(RawImage(b"")), AS_IT_IS) is None


def test_no_row_left_is_an_empty_batch() -> None:
    result = decode(batch(RawImage(b""), RawImage(b"junk")), Target(None, None, (1, 6, 4)))
    assert result.pixels.shape == (0, 1, 6, 4)
    assert len(result.bad) == 2


def test_a_bomb_is_a_bad_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(BadImage, match="exceeds limit"):
        open_image(encoded(COLOUR))


def test_a_colour_mode_that_pillow_does_not_convert_is_a_bad_image() -> None:
    lab = BytesIO()
    Image.new("LAB", (4, 4)).save(lab, "TIFF")
    rows = batch(RawImage(lab.getvalue()), RawImage(encoded(GREY)))
    result = decode(rows, Target(4, 1, (1, 4, 4)))
    assert result.good.tolist() == [1]
    assert "has colour mode LAB, which can't be converted" in str(result.bad[0])


def test_too_little_memory_makes_no_bad_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Image, "open", no_memory)
    with pytest.raises(MemoryError):
        open_image(b"content")
