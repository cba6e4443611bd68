"""Build archives byte by byte, and check that a refused archive leaves no files."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from training.data.sources.archives import Limits, unpack
from training.errors import DataError

STANDARD = Limits()


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


def both(folder: Path, files: dict[str, bytes]) -> list[Path]:
    """Pack the same files as .tar and as .zip."""
    (folder / "bad.tar").write_bytes(tar_bytes([plain(*item) for item in files.items()]))
    with zipfile.ZipFile(folder / "bad.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return [folder / "bad.tar", folder / "bad.zip"]


def refused(archive: Path, limits: Limits = STANDARD) -> str:
    before = set(archive.parent.parent.rglob("*"))
    with pytest.raises(DataError) as caught:
        unpack(archive, archive.parent / "out", limits)
    assert set(archive.parent.parent.rglob("*")) == before, "nothing may be left behind, inside or outside"
    assert str(archive) in str(caught.value)
    return str(caught.value)
