"""Atomic writes of files and folders (write to a temporary path, sync, rename), and SHA-256 digests."""

import hashlib
import io
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

HALF_DONE = (".*.tmp", ".*.removed")
TEMPORARY_PREFIX = "evergreen-"
_CHUNK = 1 << 20
_PIECE = 64 << 20
_UNSYNCED = 256 << 20


def digest_file(path: Path, moved: Callable[[int], None] = lambda _: None) -> str:
    """SHA-256 of a file's bytes, in hex; `moved` is called with each number of bytes read."""
    with CountedFile(path, moved) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def canonical_json(value: Any) -> str:
    """Canonical JSON, equal for equal values: sorted keys, no spaces. Raises ValueError for NaN and infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest_json(value: Any) -> str:
    """SHA-256 of :func:`canonical_json`, in hex."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable (fsync)."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def atomic_file(path: Path, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `path`; the file is renamed to `path` when the block succeeds, else removed.

    Without `durable`, the file may be missing or truncated after a power loss: only for files that are checked
    before they are used.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield aside
        if durable:
            with aside.open("rb") as stream:
                os.fsync(stream.fileno())
        aside.replace(path)
        if durable:
            sync_folder(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def write_text(path: Path, text: str, durable: bool = True) -> None:
    """Write a text file atomically, in UTF-8; `durable` as in :func:`atomic_file`."""
    with atomic_file(path, durable) as aside:
        aside.write_text(text, encoding="utf-8")


def append_line(path: Path, line: str) -> None:
    """Append a line to a text file; first ends a last line that a crash or a full disk cut short.

    If the disk is full, no empty file is left where there was none: it would count as a damaged record.
    """
    is_new = not path.exists()
    try:
        with path.open("ab+") as out:
            if out.tell() and os.pread(out.fileno(), 1, out.tell() - 1) != b"\n":
                line = "\n" + line
            out.write(f"{line}\n".encode())
    except OSError:
        if is_new and path.exists() and not path.stat().st_size:
            path.unlink()
        raise


@contextmanager
def atomic_folder(path: Path, before_rename: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; the folder is synced and renamed to `path` when the block succeeds.

    If `path` exists by then, another process created the same content first: that process's folder is kept. An error
    of `before_rename`, which is called after the sync, prevents the rename.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    aside.mkdir()
    try:
        yield aside
        for path_inside in aside.rglob("*"):
            if path_inside.is_dir():
                sync_folder(path_inside)
            elif path_inside.is_file():
                with path_inside.open("rb") as stream:
                    os.fsync(stream.fileno())
        sync_folder(aside)
        before_rename()
        if not path.exists():
            aside.rename(path)
            sync_folder(path.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """Yield a temporary folder that only this user may enter; the folder is removed after the block.

    Its name has this process's id, by which :mod:`tasks.cleanup.abandoned_folders` finds folders of killed processes.
    """
    with TemporaryDirectory(prefix=f"{TEMPORARY_PREFIX}{purpose}-{os.getpid()}-") as folder:
        yield Path(folder)


class CountedFile(io.FileIO):
    """A file to read, whose reads are counted: `moved` is called with each number of bytes, at most 1 MiB."""

    def __init__(self, path: Path, moved: Callable[[int], None]):
        super().__init__(path, "rb")
        self._moved = moved

    def readinto(self, buffer: "Buffer", /) -> int:
        """Fill `buffer` until the end of the file; returns the number of bytes."""
        view, filled = memoryview(buffer).cast("B"), 0
        while count := super().readinto(view[filled : filled + _CHUNK]):
            filled += count
            self._moved(count)
        return filled

    def read(self, size: int | None = -1, /) -> bytes:
        """At most `size` bytes; all bytes to the end of the file if `size` is negative or None."""
        if size is None or size < 0:
            size = os.fstat(self.fileno()).st_size - self.tell()
        content = bytearray(max(0, size))
        return bytes(memoryview(content)[: self.readinto(content)])


class DigestedFile:
    """Writes to a binary file, counts the bytes in `bytes`, and updates the SHA-256 digest `sha256` with them.

    `written` is called with each number of bytes, at most 64 MiB. Of a large file, the bytes that it was called with
    are on the disk but for the last 256 MiB, so that a caller who waits as long as bytes move knows of a slow disk.
    """

    def __init__(self, file: IO[bytes], written: Callable[[int], None] = lambda _: None):
        self._file, self._written = file, written
        self.sha256 = hashlib.sha256()
        self.bytes = self._synced = 0

    def write(self, block: bytes) -> int:
        """Write all of `block`."""
        view = memoryview(block).cast("B")
        for start in range(0, len(view), _PIECE):
            piece = view[start : start + _PIECE]
            self.sha256.update(piece)
            self._file.write(piece)
            self.bytes += len(piece)
            if self.bytes - self._synced >= _UNSYNCED:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._synced = self.bytes
            self._written(len(piece))
        return len(view)

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()


def remove_folder(path: Path, strict: bool = False) -> None:
    """Delete a folder; it is renamed first, so that no process finds a partly deleted folder at `path`.

    With `strict`, raises OSError if files can't be deleted, as those of another user. Without `strict`, they stay in a
    folder of another name, as files do that a process on another machine has open.
    """
    if not path.exists():
        return
    doomed = path.with_name(f".{path.name}.removed")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)
    if strict and doomed.exists():
        shutil.rmtree(doomed)


def sweep(folder: Path) -> None:
    """Remove partly written and partly deleted files that a crash left in `folder`; no process may write there."""
    for pattern in HALF_DONE:
        for left in folder.glob(pattern):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def copy_checked(read: Callable[[int], bytes], target: Path) -> tuple[str, int]:
    """Copy a stream into `target`; returns the SHA-256 in hex and the size in bytes.

    `read(n)` returns at most `n` bytes, and none at the end of the stream.
    """
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as out:
        while chunk := read(_CHUNK):
            digest.update(chunk)
            size += out.write(chunk)
    return digest.hexdigest(), size
