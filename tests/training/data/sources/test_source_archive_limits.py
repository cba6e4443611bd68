"""Archives that would unpack to too much data are refused before unpacking."""

import gzip
import lzma
import zipfile
from pathlib import Path

import pytest
from packing import both, plain, refused, tar_bytes

from training.data.sources.archives import Limits, unpack


@pytest.mark.parametrize("deep", [33, 1500])
def test_too_deep(inner_folder: Path, deep: int) -> None:
    name = "d/" * (deep - 1) + "f"
    (inner_folder / "bad.tar").write_bytes(tar_bytes([plain(name)]))
    with zipfile.ZipFile(inner_folder / "bad.zip", "w") as packed:
        packed.writestr(name, b"x")
    assert "more than 32 deep" in refused(inner_folder / "bad.tar")
    assert "more than 32 deep" in refused(inner_folder / "bad.zip")


def test_too_many_members(inner_folder: Path) -> None:
    for archive in both(inner_folder, {str(number): b"x" for number in range(4)}):
        assert "'3' is one more than the 3 allowed" in refused(archive, Limits(members=3))
        unpack(archive, inner_folder / archive.suffix, Limits(members=4))


def test_too_large(inner_folder: Path) -> None:
    for archive in both(inner_folder, {"a": bytes(600), "b": bytes(600)}):
        message = refused(archive, Limits(bytes=1000))
        assert "'b' brings the total to more than the 1,000 bytes allowed" in message
        unpack(archive, inner_folder / archive.suffix, Limits(bytes=1200))


def test_a_bomb_in_many_small_pieces(inner_folder: Path) -> None:
    with zipfile.ZipFile(inner_folder / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for number in range(200):
            packed.writestr(f"{number}", bytes(100_000))
    pieces = [plain(f"{number}", bytes(100_000)) for number in range(200)]
    (inner_folder / "bomb.tar.xz").write_bytes(lzma.compress(tar_bytes(pieces)))
    for name in ("bomb.zip", "bomb.tar.xz"):
        assert "as bombs do" in refused(inner_folder / name)


def test_bombs(inner_folder: Path) -> None:
    bomb = bytes(20 << 20)
    with zipfile.ZipFile(inner_folder / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("zeros", bomb)
    (inner_folder / "bomb.tar.gz").write_bytes(gzip.compress(tar_bytes([plain("zeros", bomb)])))
    (inner_folder / "bomb.tar.xz").write_bytes(lzma.compress(tar_bytes([plain("zeros", bomb)])))
    for name in ("bomb.zip", "bomb.tar.gz", "bomb.tar.xz"):
        assert "as bombs do" in refused(inner_folder / name)


def test_a_bomb_in_a_header(inner_folder: Path) -> None:
    info, content = plain("small")
    info.pax_headers = {"comment": "x" * (20 << 20)}
    (inner_folder / "bomb.tar.xz").write_bytes(lzma.compress(tar_bytes([(info, content)])))
    assert "as bombs do" in refused(inner_folder / "bomb.tar.xz")
