"""Files that are complete or absent: written aside, synced, then renamed; and their digests."""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

HALF_DONE = (".*.tmp", ".*.removed")
TEMPORARY_PREFIX = "evergreen-"
_CHUNK = 1 << 20


def digest_file(path: Path) -> str:
    """sha256 of a file's bytes, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def canonical_json(value: Any) -> str:
    """JSON with one spelling for one value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest_json(value: Any) -> str:
    """sha256 of :func:`canonical_json`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def atomic_file(path: Path, durable: bool = True) -> Iterator[Path]:
    """A temporary path beside `path` that takes its name when the block succeeds; else it is removed.

    Unless `durable`, the file may be gone or cut short after a loss of power: for what is checked before it is used.
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
    """Write a whole text file atomically."""
    with atomic_file(path, durable) as aside:
        aside.write_text(text, encoding="utf-8")


def append_line(path: Path, line: str) -> None:
    """Add a line to a text file; one before it that a crash or a full disk cut short stays apart from it."""
    with path.open("ab+") as out:
        if out.tell() and os.pread(out.fileno(), 1, out.tell() - 1) != b"\n":
            line = "\n" + line
        out.write(f"{line}\n".encode())


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that takes its name, durably, when the block succeeds.

    When `path` exists already by then, another process made the same thing first: its work is kept.
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
        if not path.exists():
            aside.rename(path)
            sync_folder(path.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """A folder for the block that only this user may enter.

    Its name has this process's id: :mod:`tasks.cleanup.abandoned_folders` knows by that what a killed process left.
    """
    with TemporaryDirectory(prefix=f"{TEMPORARY_PREFIX}{purpose}-{os.getpid()}-") as folder:
        yield Path(folder)


class DigestedStream:
    """Writes to a binary stream and takes the sha256 of what it is given, on the way."""

    def __init__(self, stream: IO[bytes]):
        self.stream = stream
        self.sha256 = hashlib.sha256()
        self.bytes = 0

    def write(self, block: bytes) -> int:
        """Write all of `block`."""
        self.sha256.update(block)
        self.bytes += memoryview(block).nbytes
        return self.stream.write(block)

    def flush(self) -> None:
        """Flush the stream."""
        self.stream.flush()


def remove_folder(path: Path) -> None:
    """Delete a folder, which leaves its name before it is emptied: nobody finds half of it."""
    if not path.exists():
        return
    doomed = path.with_name(f".{path.name}.removed")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove what a crash left half written or half deleted in `folder`; nobody may be writing there."""
    for pattern in HALF_DONE:
        for left in folder.glob(pattern):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def copy_checked(read: Callable[[int], bytes], target: Path) -> tuple[str, int]:
    """Copy a stream into `target`; returns its sha256 and size in bytes."""
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as out:
        while chunk := read(_CHUNK):
            digest.update(chunk)
            size += out.write(chunk)
    return digest.hexdigest(), size
