"""Archives: good ones come out whole, hostile ones leave nothing."""

import gzip
import io
import lzma
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from training.errors import DataError
from training.sources.archives import Limits, unpack

STANDARD = Limits()
FILES = {"train/cat/1.jpg": b"one" * 1000, "train/dog/2.jpg": b"", "test/cat/ä.jpg": os.urandom(3000)}


def tar_bytes(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def plain(name: str, content: bytes = b"x") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    return info, content


def special(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


def tree(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def refused(archive: Path, limits: Limits = STANDARD) -> str:
    before = set(archive.parent.parent.rglob("*"))
    with pytest.raises(DataError) as caught:
        unpack(archive, archive.parent / "out", limits)
    assert set(archive.parent.parent.rglob("*")) == before, "nothing may be left behind, inside or outside"
    assert str(archive) in str(caught.value)
    return str(caught.value)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    inner = tmp_path / "inner"
    inner.mkdir()
    return inner


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [
        (".tar", bytes),
        (".tar.gz", gzip.compress),
        (".tgz", gzip.compress),
        (".tar.xz", lzma.compress),
        (".txz", lzma.compress),
    ],
)
def test_good_tar(place: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    folders = [special("./", tarfile.DIRTYPE), special("train/", tarfile.DIRTYPE)]
    archive = place / f"good{suffix}"
    archive.write_bytes(pack(tar_bytes(folders + [plain(*item) for item in FILES.items()])))
    unpack(archive, place / "out")
    assert tree(place / "out") == FILES


def test_good_zip(place: Path) -> None:
    with zipfile.ZipFile(place / "good.ZIP", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.mkdir("train")
        for name, content in FILES.items():
            packed.writestr(name, content)
    unpack(place / "good.ZIP", place / "out")
    assert tree(place / "out") == FILES


UNSAFE = ["/tmp/evil", "../evil", "a/../../evil", "a/../b", "a\\..\\evil", "C:evil", "a\nb", "n" * 300]


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_paths_in_tar(place: Path, name: str) -> None:
    archive = place / "bad.tar"
    archive.write_bytes(tar_bytes([plain("first"), plain(name)]))
    assert repr(name) in refused(archive)


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_paths_in_zip(place: Path, name: str) -> None:
    archive = place / "bad.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("first", b"x")
        packed.writestr(name, b"x")
    assert repr(name) in refused(archive)


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (tarfile.SYMTYPE, "/etc/passwd"),
        (tarfile.SYMTYPE, "first"),
        (tarfile.LNKTYPE, "first"),
        (tarfile.CHRTYPE, ""),
        (tarfile.BLKTYPE, ""),
        (tarfile.FIFOTYPE, ""),
    ],
)
def test_links_and_devices_in_tar(place: Path, kind: bytes, target: str) -> None:
    archive = place / "bad.tar"
    archive.write_bytes(tar_bytes([plain("first"), special("second", kind, target)]))
    assert "'second' is a link" in refused(archive)


def test_a_write_through_a_link_in_tar(place: Path) -> None:
    archive = place / "bad.tar"
    archive.write_bytes(tar_bytes([special("out", tarfile.SYMTYPE, "../.."), plain("out/evil")]))
    assert "'out' is a link" in refused(archive)


def test_sparse_files_in_tar(place: Path) -> None:
    archive = place / "bad.tar"
    info, content = plain("hollow")
    info.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.map": "0,1",
        "GNU.sparse.size": "9",
    }
    archive.write_bytes(tar_bytes([(info, content)]))
    assert "'hollow' is a link, a device or a sparse file" in refused(archive)


def test_links_in_zip(place: Path) -> None:
    archive = place / "bad.zip"
    info = zipfile.ZipInfo("link")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr(info, "/etc/passwd")
    assert "'link' is a link" in refused(archive)


def test_encrypted_zip(place: Path) -> None:
    archive = place / "bad.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("secret", b"x")
    content = bytearray(archive.read_bytes())
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(content)
    assert "'secret' is encrypted" in refused(archive)


@pytest.mark.parametrize("names", [("a", "a"), ("a", "./a"), ("d/a", "d//a"), ("a", "a/b"), ("a/b", "a")])
def test_a_name_twice_in_tar(place: Path, names: tuple[str, str]) -> None:
    archive = place / "bad.tar"
    archive.write_bytes(tar_bytes([plain(name) for name in names]))
    assert f"{names[1]!r} appears twice" in refused(archive)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_twice_in_zip(place: Path) -> None:
    archive = place / "bad.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("a", b"1")
        packed.writestr("a", b"2")
    assert "'a' appears twice" in refused(archive)


def test_too_many_members(place: Path) -> None:
    archive = place / "bad.tar"
    archive.write_bytes(tar_bytes([plain(f"{number}") for number in range(4)]))
    assert "'3' is one more than the 3 allowed" in refused(archive, Limits(members=3))


def test_too_large(place: Path) -> None:
    archive = place / "bad.tar"
    archive.write_bytes(tar_bytes([plain("a", bytes(600)), plain("b", bytes(600))]))
    assert "'b' brings the total to more than the 1,000 bytes allowed" in refused(archive, Limits(bytes=1000))


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


def test_zip_that_understates_a_size(place: Path) -> None:
    archive = place / "bad.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("liar", bytes(5000))
    content = archive.read_bytes()
    archive.write_bytes(content.replace((5000).to_bytes(4, "little"), (50).to_bytes(4, "little")))
    assert str(archive) in refused(archive)


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tar.xz", ".zip"])
def test_cut_short_anywhere(place: Path, suffix: str) -> None:
    whole = tar_bytes([plain(*item) for item in FILES.items()]).rstrip(b"\0")
    whole += bytes(-len(whole) % 512 + 1024)
    if suffix == ".zip":
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as packed:
            for name, content in FILES.items():
                packed.writestr(name, content)
        whole = out.getvalue()
    whole = {".tar.gz": gzip.compress, ".tar.xz": lzma.compress}.get(suffix, bytes)(whole)
    archive = place / f"bad{suffix}"
    for length in [0, 1, 511, 512, 1024, len(whole) // 2, len(whole) - 513, len(whole) - 8]:
        if length < len(whole) and not (suffix == ".tar" and length == len(whole) - 8):  # inside the end mark
            archive.write_bytes(whole[:length])
            refused(archive)


def test_a_damaged_header_is_not_taken_for_the_end(place: Path) -> None:
    content = bytearray(tar_bytes([plain("a"), plain("b"), plain("c")]))
    content[1024 + 148] ^= 1  # the checksum of the second header
    for name, packed in (("bad.tar", bytes(content)), ("bad.tar.gz", gzip.compress(content))):
        (place / name).write_bytes(packed)
        assert "damaged" in refused(place / name)


def test_a_flipped_bit_in_a_zip(place: Path) -> None:
    archive = place / "bad.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("a", b"content" * 100)
    content = bytearray(archive.read_bytes())
    content[200] ^= 1
    archive.write_bytes(content)
    assert "damaged" in refused(archive)


@pytest.mark.timeout(20)
def test_a_negative_size_does_not_hang(place: Path) -> None:
    info, _ = plain("loop", b"")
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 11 + b"\x00"  # -256 in base 256
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (place / "bad.tar").write_bytes(bytes(header) + bytes(2048))
    refused(place / "bad.tar")


def test_empty_and_unknown(place: Path) -> None:
    (place / "empty.tar").write_bytes(tar_bytes([special("d", tarfile.DIRTYPE)]))
    assert "holds no files" in refused(place / "empty.tar")
    (place / "file.rar").write_bytes(b"x")
    assert ".tar.gz" in refused(place / "file.rar")
