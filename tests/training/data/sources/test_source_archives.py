"""Archives: valid archives are unpacked completely, hostile archives leave no files."""

import gzip
import io
import lzma
import os
import random
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from packing import plain, refused, special, tar_bytes

from training.data.sources.archives import unpack
from training.errors import DataError

FILES = {
    "train/cat/1.jpg": b"one" * 1000,
    "train/dog/2.jpg": b"",
    "test/cat/ä.jpg": random.Random(0).randbytes(3000),
}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


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
def test_good_tar(inner_folder: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    folders = [special("./", tarfile.DIRTYPE), special("train/", tarfile.DIRTYPE)]
    archive = inner_folder / f"good{suffix}"
    archive.write_bytes(pack(tar_bytes(folders + [plain(*item) for item in FILES.items()])))
    unpack(archive, inner_folder / "out")
    assert tree(inner_folder / "out") == FILES


def test_good_zip(inner_folder: Path) -> None:
    with zipfile.ZipFile(inner_folder / "good.ZIP", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.mkdir("train")
        for name, content in FILES.items():
            packed.writestr(name, content)
    unpack(inner_folder / "good.ZIP", inner_folder / "out")
    assert tree(inner_folder / "out") == FILES


UNSAFE = ["/tmp/evil", "../evil", "a/../../evil", "a/../b", "a\\..\\evil", "C:evil", "a\nb", "n" * 300]


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_paths_in_tar(inner_folder: Path, name: str) -> None:
    archive = inner_folder / "bad.tar"
    archive.write_bytes(tar_bytes([plain("first"), plain(name)]))
    assert repr(name) in refused(archive)


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_paths_in_zip(inner_folder: Path, name: str) -> None:
    archive = inner_folder / "bad.zip"
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
def test_links_and_devices_in_tar(inner_folder: Path, kind: bytes, target: str) -> None:
    archive = inner_folder / "bad.tar"
    archive.write_bytes(tar_bytes([plain("first"), special("second", kind, target)]))
    assert "'second' is a link" in refused(archive)


def test_a_write_through_a_link_in_tar(inner_folder: Path) -> None:
    archive = inner_folder / "bad.tar"
    archive.write_bytes(tar_bytes([special("out", tarfile.SYMTYPE, "../.."), plain("out/evil")]))
    assert "'out' is a link" in refused(archive)


def test_sparse_files_in_tar(inner_folder: Path) -> None:
    archive = inner_folder / "bad.tar"
    info, content = plain("hollow")
    info.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.map": "0,1",
        "GNU.sparse.size": "9",
    }
    archive.write_bytes(tar_bytes([(info, content)]))
    assert "'hollow' is a link, a device or a sparse file" in refused(archive)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK])
def test_links_and_devices_in_zip(inner_folder: Path, kind: int) -> None:
    archive = inner_folder / "bad.zip"
    info = zipfile.ZipInfo("second")
    info.external_attr = (kind | 0o777) << 16
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("first", b"x")
        packed.writestr(info, "/etc/passwd")
    assert "'second' is a link or a device" in refused(archive)


def test_a_path_that_only_an_extended_header_gives(inner_folder: Path) -> None:
    info, content = plain("harmless")
    info.pax_headers = {"path": "../evil"}
    (inner_folder / "bad.tar").write_bytes(tar_bytes([(info, content)]))
    assert "'../evil' has a path that may lead outside" in refused(inner_folder / "bad.tar")


def test_a_link_that_only_an_extended_header_gives_a_target(inner_folder: Path) -> None:
    info, _ = special("harmless", tarfile.SYMTYPE)
    info.pax_headers = {"linkpath": "/etc/passwd"}
    (inner_folder / "bad.tar").write_bytes(tar_bytes([(info, b"")]))
    assert "'harmless' is a link" in refused(inner_folder / "bad.tar")


def test_owners_and_permissions_are_not_taken_over(inner_folder: Path) -> None:
    info, content = plain("program")
    info.mode, info.uid, info.gid = 0o6777, 12345, 12345
    (inner_folder / "good.tar").write_bytes(tar_bytes([(info, content)]))
    unpack(inner_folder / "good.tar", inner_folder / "out")
    status = (inner_folder / "out" / "program").stat()
    assert (stat.S_IMODE(status.st_mode) & 0o7111, status.st_uid) == (0, os.getuid())


def test_encrypted_zip(inner_folder: Path) -> None:
    archive = inner_folder / "bad.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("secret", b"x")
    content = bytearray(archive.read_bytes())
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(content)
    assert "'secret' is encrypted" in refused(archive)


@pytest.mark.parametrize("names", [("a", "a"), ("a", "./a"), ("d/a", "d//a"), ("a", "a/b"), ("a/b", "a")])
def test_a_name_twice_in_tar(inner_folder: Path, names: tuple[str, str]) -> None:
    archive = inner_folder / "bad.tar"
    archive.write_bytes(tar_bytes([plain(name) for name in names]))
    assert f"{names[1]!r} appears twice" in refused(archive)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("names", [("a", "a"), ("a", "./a"), ("d/a", "d//a"), ("a", "a/b"), ("a/b", "a")])
def test_a_name_twice_in_zip(inner_folder: Path, names: tuple[str, str]) -> None:
    archive = inner_folder / "bad.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for number, name in enumerate(names):
            packed.writestr(name, str(number))
    assert f"{names[1]!r} appears twice" in refused(archive)


def test_a_zip_that_has_two_names_for_one_member(inner_folder: Path) -> None:
    archive = inner_folder / "bad.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("one-name", b"x")
    content = archive.read_bytes()
    directory = content.index(b"PK\x01\x02")
    archive.write_bytes(content[:directory] + content[directory:].replace(b"one-name", b"two-name"))
    assert "damaged" in refused(archive)


def test_zip_that_understates_a_size(inner_folder: Path) -> None:
    archive = inner_folder / "bad.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("liar", bytes(5000))
    content = archive.read_bytes()
    archive.write_bytes(content.replace((5000).to_bytes(4, "little"), (50).to_bytes(4, "little")))
    assert str(archive) in refused(archive)


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tar.xz", ".zip"])
def test_cut_short_anywhere(inner_folder: Path, suffix: str) -> None:
    whole = tar_bytes([plain(*item) for item in FILES.items()]).rstrip(b"\0")
    whole += bytes(-len(whole) % 512 + 1024)
    if suffix == ".zip":
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as packed:
            for name, content in FILES.items():
                packed.writestr(name, content)
        whole = out.getvalue()
    whole = {".tar.gz": gzip.compress, ".tar.xz": lzma.compress}.get(suffix, bytes)(whole)
    archive = inner_folder / f"bad{suffix}"
    for length in [0, 1, 511, 512, 1024, len(whole) // 2, len(whole) - 513, len(whole) - 8]:
        if length < len(whole) and not (suffix == ".tar" and length == len(whole) - 8):  # in the end mark
            archive.write_bytes(whole[:length])
            refused(archive)


def test_a_damaged_header_is_not_taken_for_the_end(inner_folder: Path) -> None:
    content = bytearray(tar_bytes([plain("a"), plain("b"), plain("c")]))
    content[1024 + 148] ^= 1  # in the checksum field of the second header
    for name, packed in (("bad.tar", bytes(content)), ("bad.tar.gz", gzip.compress(content))):
        (inner_folder / name).write_bytes(packed)
        assert "damaged" in refused(inner_folder / name)


def test_a_flipped_bit_in_a_zip(inner_folder: Path) -> None:
    archive = inner_folder / "bad.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("a", b"content" * 100)
    content = bytearray(archive.read_bytes())
    content[200] ^= 1
    archive.write_bytes(content)
    assert "damaged" in refused(archive)


@pytest.mark.timeout(20)
def test_a_negative_size_does_not_hang(inner_folder: Path) -> None:
    info, _ = plain("loop", b"")
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 11 + b"\x00"  # -256 in base 256
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (inner_folder / "bad.tar").write_bytes(bytes(header) + bytes(2048))
    refused(inner_folder / "bad.tar")


def test_empty_and_unknown(inner_folder: Path) -> None:
    (inner_folder / "empty.tar").write_bytes(tar_bytes([special("d", tarfile.DIRTYPE)]))
    assert "holds no files" in refused(inner_folder / "empty.tar")
    (inner_folder / "file.rar").write_bytes(b"x")
    assert ".tar.gz" in refused(inner_folder / "file.rar")


def packed_in_every_way() -> dict[str, bytes]:
    tar, out = tar_bytes([plain(*item) for item in FILES.items()]), io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in FILES.items():
            packed.writestr(name, content)
    return {".tar": tar, ".tar.gz": gzip.compress(tar), ".tar.xz": lzma.compress(tar), ".zip": out.getvalue()}


@pytest.mark.extended
@pytest.mark.parametrize(("suffix", "whole"), packed_in_every_way().items())
def test_damage_anywhere_is_refused_or_stays_inside(inner_folder: Path, suffix: str, whole: bytes) -> None:
    archive, outcomes = inner_folder / f"bad{suffix}", set()
    for seed in range(100):
        dice = random.Random(seed)
        content = bytearray(whole)
        for _ in range(dice.choice([1, 1, 3, 10])):
            content[dice.randrange(len(content))] = dice.randrange(256)
        archive.write_bytes(content)
        try:
            unpack(archive, inner_folder / "out")
            shutil.rmtree(inner_folder / "out")
            outcomes.add("unpacked")
        except DataError as error:
            outcomes.add("refused" if str(archive) in str(error) else str(error))
        assert set(inner_folder.parent.rglob("*")) == {inner_folder, archive}
    assert outcomes <= {"refused", "unpacked"}
    assert "refused" in outcomes
