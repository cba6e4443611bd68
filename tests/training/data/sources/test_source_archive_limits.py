"""Archives that would unpack to too much data are refused before unpacking."""

import gzip
import lzma
import zipfile
from pathlib import Path

import pytest
from packing import both, plain, refused, tar_bytes

from training.data.sources.archives import Limits, unpack


@pytest.mark.parametrize("deep", [33, 1500])
def test_too_deep(place: Path, deep: int) -> None:
    name = "d/" * (deep - 1) + "f"
    (place / "bad.tar").write_bytes(tar_bytes([plain(name)]))
    with zipfile.ZipFile(place / "bad.zip", "w") as packed:
        packed.writestr(name, b"x")
    assert "more than 32 deep" in refused(place / "bad.tar")
    assert "more than 32 deep" in refused(place / "bad.zip")


def test_too_many_members(place: Path) -> None:
    for archive in both(place, {str(number): b"x" for number in range(4)}):
        assert "'3' is one more than the 3 allowed" in refused(archive, Limits(members=3))
        unpack(archive, place / archive.suffix, Limits(members=4))


def test_too_large(place: Path) -> None:
    for archive in both(place, {"a": bytes(600), "b": bytes(600)}):
        message = refused(archive, Limits(bytes=1000))
        assert "'b' brings the total to more than the 1,000 bytes allowed" in message
        unpack(archive, place / archive.suffix, Limits(bytes=1200))


def test_a_bomb_in_many_small_pieces(place: Path) -> None:
    with zipfile.ZipFile(place / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for number in range(200):
            packed.writestr(f"{number}", bytes(100_000))
    pieces = [plain(f"{number}", bytes(100_000)) for number in range(200)]
    (place / "bomb.tar.xz").write_bytes(lzma.compress(tar_bytes(pieces)))
    for name in ("bomb.zip", "bomb.tar.xz"):
        assert "as bombs do" in refused(place / name)


def test_bombs(place: Path) -> None:
    bomb = bytes(20 << 20)
    with zipfile.ZipFile(place / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("zeros", bomb)
    (place / "bomb.tar.gz").write_bytes(gzip.compress(tar_bytes([plain("zeros", bomb)])))
    (place / "bomb.tar.xz").write_bytes(lzma.compress(tar_bytes([plain("zeros", bomb)])))
    for name in ("bomb.zip", "bomb.tar.gz", "bomb.tar.xz"):
        assert "as bombs do" in refused(place / name)


def test_a_bomb_in_a_header(place: Path) -> None:
    info, content = plain("small")
    info.pax_headers = {"comment": "x" * (20 << 20)}
    (place / "bomb.tar.xz").write_bytes(lzma.compress(tar_bytes([(info, content)])))
    assert "as bombs do" in refused(place / "bomb.tar.xz")
