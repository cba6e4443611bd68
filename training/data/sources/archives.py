"""Unpack an untrusted archive: only plain files and folders, only inside the target folder, within limits.

This module checks and writes every member itself: Python 3.11's extraction filter can be bypassed, whereas a new
folder has no links that a plain write could follow. When an archive is refused or damaged, no file is left on disk.
"""

import errno
import gzip
import lzma
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from training.data.sources.wording import counted
from training.errors import DataError
from training.storage.files import atomic_folder, copy_checked

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".zip")

_BLOCK = 512
_CHUNK = 1 << 20
_FREE_BYTES = 1 << 20  # allowed on top of the ratio, which means little for a small archive
_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    ValueError,
    struct.error,
)
_UNSAFE = re.compile(r"[\x00-\x1f\\]|^/|^[A-Za-z]:")


@dataclass(frozen=True)
class Limits:
    """Limits of an archive: `ratio` is unpacked bytes per archive byte, `depth` the number of names in a path."""

    members: int = 2_000_000
    depth: int = 32
    bytes: int = 256 << 30
    ratio: float = 200.0


def is_archive(path: Path) -> bool:
    """Whether the file's name has a suffix of an archive that :func:`unpack` supports."""
    return path.name.lower().endswith(SUFFIXES)


def unpack(archive: Path, folder: Path, limits: Limits = Limits()) -> None:
    """Atomically unpack `archive` into the new folder `folder`.

    Raises :class:`DataError` that names the archive, and the member if known, when a member is not a plain file or
    folder inside `folder`, appears twice or breaks `limits`, or when the archive is damaged, truncated or empty.
    """
    if not is_archive(archive):
        raise DataError(f"{archive}: not an archive that can be unpacked; take one of {', '.join(SUFFIXES)}.")
    read = _read_zip if archive.name.lower().endswith(".zip") else _read_tar
    with atomic_folder(folder) as aside:
        guard = _Guard(archive, aside.resolve(), limits, archive.stat().st_size)
        try:
            read(archive, guard)
        except _BROKEN as error:
            raise DataError(
                f"{archive}: damaged or cut short ({type(error).__name__}: {error}). Fetch it again."
            ) from error
        except (OSError, NotImplementedError, RuntimeError) as error:
            # EINVAL: a damaged zip file makes the reader seek to a negative offset.
            if isinstance(error, OSError) and error.errno not in {None, errno.ENAMETOOLONG, errno.EINVAL}:
                raise  # an I/O error of the machine, not a damaged archive
            raise DataError(
                f"{archive}: can't be unpacked ({error}). Fetch it again, or repack it plainly."
            ) from error
        if not guard.files:
            raise DataError(f"{archive}: holds no files.")


@dataclass
class _Guard:
    """Checks and writes each member, and counts files and bytes against the limits."""

    archive: Path
    root: Path
    limits: Limits
    archive_bytes: int
    seen: dict[PurePosixPath, bool] = field(default_factory=dict)
    files: int = 0
    unpacked: int = 0

    def refuse(self, name: str, rule: str) -> DataError:
        return DataError(f"{self.archive}: member {name!r} {rule}; nothing was unpacked.")

    def place(self, name: str, is_folder: bool) -> Path:
        """Check a member's name and return the path to write the member to."""
        path = PurePosixPath(name)
        if _UNSAFE.search(name) or ".." in path.parts:
            raise self.refuse(name, "has a path that may lead outside of the folder")
        if any(len(part.encode(errors="surrogateescape")) > 255 for part in path.parts):
            raise self.refuse(name, "has a name longer than 255 bytes")
        if len(path.parts) > self.limits.depth:
            raise self.refuse(name, f"lies more than {self.limits.depth} deep")
        if len(self.seen) >= self.limits.members:
            raise self.refuse(name, f"is one more than the {self.limits.members:,} allowed")
        if self._collides(path, is_folder):
            raise self.refuse(name, "appears twice")
        self.seen[path] = is_folder
        target = self.root.joinpath(*path.parts)
        if not target.resolve().is_relative_to(self.root):
            raise self.refuse(name, "has a path that leads outside of the folder")
        return target

    def _collides(self, path: PurePosixPath, is_folder: bool) -> bool:
        # A folder that was only implied by a path is not a member yet: member `a/` may follow member `a/b`.
        if path in self.seen:
            return True
        if not is_folder and self.root.joinpath(*path.parts).exists():
            return True
        return any(self.seen.get(parent) is False for parent in path.parents)

    def folder(self, name: str) -> None:
        """Create the folder of a member."""
        self.place(name, is_folder=True).mkdir(parents=True, exist_ok=True)

    def file(self, name: str, size: int, source: IO[bytes]) -> None:
        """Write a member that is a plain file of `size` bytes."""
        target = self.place(name, is_folder=False)
        self.count(name, size)
        target.parent.mkdir(parents=True, exist_ok=True)
        left = size

        def read(amount: int) -> bytes:
            nonlocal left
            chunk = source.read(min(amount, left + 1))
            left -= len(chunk)
            if left < 0:
                raise self.refuse(name, f"is larger than the {counted(size, 'byte')} it claims")
            return chunk

        _, written = copy_checked(read, target)
        if written != size:
            raise self.refuse(name, f"is cut short: {written:,} of {counted(size, 'byte')}")
        self.files += 1

    def count(self, name: str, size: int) -> None:
        """Add `size` to the number of unpacked bytes, and check the limits, before the bytes are written."""
        self.unpacked += size
        if size < 0 or self.unpacked > self.limits.bytes:
            raise self.refuse(
                name, f"brings the total to more than the {counted(self.limits.bytes, 'byte')} allowed"
            )
        if self.unpacked > self.limits.ratio * self.archive_bytes + _FREE_BYTES:
            raise self.refuse(
                name, f"unpacks to more than {self.limits.ratio:g} times the archive's size, as bombs do"
            )


def _read_tar(archive: Path, guard: _Guard) -> None:
    # Read as a stream: a header that points backwards is then an error instead of an endless loop.
    with _decompressed(archive) as stream, _tar_stream(_Metered(stream, guard)) as tar:
        for member in tar:
            if member.isdir():
                guard.folder(member.name)
            elif not member.isreg() or member.issparse():
                raise guard.refuse(
                    member.name, "is a link, a device or a sparse file; only plain files are unpacked"
                )
            else:
                source = tar.extractfile(member)
                assert source is not None
                guard.file(member.name, member.size, source)
            cast(Any, tar).members.clear()  # otherwise tarfile keeps every header in memory
        _check_end(tar, archive)


def _tar_stream(stream: "_Metered") -> tarfile.TarFile:
    return tarfile.open(fileobj=cast(Any, stream), mode="r|")  # tarfile only calls `read` of a stream


def _check_end(tar: tarfile.TarFile, archive: Path) -> None:
    """Raise DataError unless only zeros follow: tarfile mistakes a broken header for the end of the archive."""
    read = cast(Callable[[int], bytes], cast(Any, tar.fileobj).read)
    total = 0
    while chunk := read(_CHUNK):
        total += len(chunk)
        if chunk.strip(b"\0"):
            raise DataError(f"{archive}: damaged: data follow where the archive should end. Fetch it again.")
    if total < _BLOCK:
        raise DataError(f"{archive}: cut short: the mark at its end is missing. Fetch it again.")


@contextmanager
def _decompressed(archive: Path) -> Iterator[IO[bytes]]:
    name = archive.name.lower()
    with ExitStack() as stack:
        if name.endswith((".gz", ".tgz")):
            yield cast(IO[bytes], stack.enter_context(gzip.open(archive, "rb")))
        elif name.endswith((".xz", ".txz")):
            yield cast(IO[bytes], stack.enter_context(lzma.open(archive, "rb")))
        else:
            yield stack.enter_context(archive.open("rb"))


@dataclass
class _Metered:
    """A stream with a limit on its bytes: the sizes of members do not reveal a decompression bomb in headers."""

    stream: IO[bytes]
    guard: _Guard
    total: int = 0

    def read(self, amount: int) -> bytes:
        chunk = self.stream.read(amount)
        self.total += len(chunk)
        # Headers and padding take at most three blocks per member with a short name.
        slack = _FREE_BYTES + 8 * _BLOCK * (len(self.guard.seen) + 1)
        if self.total > self.guard.limits.ratio * self.guard.archive_bytes + slack:
            raise DataError(
                f"{self.guard.archive}: unpacks to more than {self.guard.limits.ratio:g} times its size, "
                "as bombs do; nothing was unpacked."
            )
        return chunk


def _read_zip(archive: Path, guard: _Guard) -> None:
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if member.flag_bits & 0x1:
                raise guard.refuse(member.filename, "is encrypted")
            if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
                raise guard.refuse(member.filename, "is a link or a device; only plain files are unpacked")
            if member.is_dir():
                guard.folder(member.filename)
            else:
                with packed.open(member) as source:
                    guard.file(member.filename, member.file_size, source)
