"""Image files that start a program, never end or exhaust the memory are reported by name and not read."""

import os
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tasks.inference.unlabelled_images import find_chunks, read_chunk
from training.data.images.decoding import BadImage, open_image
from training.data.sources import plain_files
from training.data.sources.locate import open_path
from training.errors import DataError

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.fixture
def ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The mark created by a program `gs` (Ghostscript), which Pillow would find on the PATH."""
    mark, program = tmp_path / "executed", tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch '{mark}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # Pillow looks for the program once per process
    return mark


def test_postscript_under_another_name_starts_no_program(tmp_path: Path, ghostscript: Path) -> None:
    file = tmp_path / "innocent.png"
    file.write_bytes(EPS)
    with pytest.raises(BadImage, match="of no known format"):
        open_image(EPS)
    assert errors_of_a_prediction(file) == [
        f"{file}: is not a readable image (of no known format: BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP)"
    ]
    assert not ghostscript.exists()
    with suppress(OSError):
        Image.open(file).load()
    assert ghostscript.exists(), "a dud"


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_an_image_that_would_fill_the_memory() -> None:
    """A file of about 60 bytes that claims 100 million pixels and one more row."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        )

    def png(height: int) -> bytes:
        header = struct.pack(">IIBBBBB", 10_000, height, 1, 0, 0, 0, 0)
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")

    with pytest.raises(BadImage, match="has 10,000x10,001 pixels; an image may have 100,000,000"):
        open_image(png(10_001))
    with pytest.raises(BadImage, match="is not a readable image"):
        open_image(png(10_000))


def pipe(file: Path) -> None:
    os.mkfifo(file)


def link_to_a_device(file: Path) -> None:
    file.symlink_to("/dev/zero")


def link_to_a_pipe(file: Path) -> None:
    os.mkfifo(file.with_name("queue"))
    file.symlink_to(file.with_name("queue"))


def too_large(file: Path) -> None:
    with file.open("wb") as stream:
        os.truncate(stream.fileno(), plain_files.MOST_BYTES + 1)


NOT_PLAIN = {
    pipe: "is a pipe, not a plain file",
    link_to_a_device: "is a device",
    link_to_a_pipe: "is a pipe",
}


def errors_of_a_prediction(path: Path) -> list[str]:
    """The errors that batch prediction reports for the images at `path`."""
    chunks = find_chunks(path)
    return [
        error
        for chunk in chunks
        for batch in read_chunk(chunk, (1, 4, 4))
        for error in batch["error"]
        if error
    ]


@pytest.mark.parametrize("make", [*NOT_PLAIN, too_large], ids=lambda make: make.__name__)
def test_prediction_reads_plain_images_only(tmp_path: Path, make: Callable[[Path], None]) -> None:
    Image.new("L", (4, 4)).save(tmp_path / "0.png")
    make(tmp_path / "1.png")
    (error,) = errors_of_a_prediction(tmp_path)
    wanted = NOT_PLAIN.get(make, "has 256 MB; an image file may have 256")
    assert error.startswith(f"{tmp_path / '1.png'}: {wanted}")


@pytest.mark.parametrize("make", NOT_PLAIN, ids=lambda make: make.__name__)
def test_nothing_but_plain_parquet_is_opened(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "1.parquet")
    with pytest.raises(DataError, match=rf"1\.parquet: {NOT_PLAIN[make]}"):
        find_chunks(tmp_path)
    with pytest.raises(DataError, match=rf"1\.parquet: {NOT_PLAIN[make]}"):
        open_path(tmp_path, tmp_path / "unpacked", ()).fetch(tmp_path / "fetched")


@pytest.mark.parametrize("name", ["/dev/zero", "pipe"])
def test_prediction_of_a_device_or_a_pipe(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="neither a plain file nor a folder"):
        find_chunks(tmp_path / name)


@pytest.mark.parametrize("make", [*NOT_PLAIN, too_large], ids=lambda make: make.__name__)
def test_training_data_are_plain_files(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / "data" / "cats").mkdir(parents=True)
    Image.new("L", (4, 4)).save(tmp_path / "data" / "cats" / "0.png")
    make(tmp_path / "data" / "cats" / "1.png")
    with pytest.raises(DataError, match=r"(1\.png|queue): (not an image file|has 256 MB)"):
        open_path(tmp_path / "data", tmp_path / "unpacked", ()).fetch(tmp_path / "fetched")


def test_an_image_that_became_a_pipe_after_it_was_listed(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / "data" / "cats").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4), number, np.uint8)).save(tmp_path / "data" / "cats" / f"{number}.png")
    source = open_path(tmp_path / "data", tmp_path / "unpacked", ())
    files = source.fetch(tmp_path / "fetched")
    (tmp_path / "data" / "cats" / "1.png").unlink()
    os.mkfifo(tmp_path / "data" / "cats" / "1.png")
    with pytest.raises(DataError, match=r"1\.png: is a pipe, not a plain file"):
        list(source.read(files, "", [0, 1]))
