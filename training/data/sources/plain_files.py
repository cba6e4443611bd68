"""Read untrusted files only if they are plain files of limited size.

Reading a pipe can block forever, and a device such as /dev/zero has no end; a link can lead to either.
"""

import os
import stat
from pathlib import Path

from training.errors import DataError

MOST_BYTES = 256_000_000  # per image file


class NotPlainError(Exception):
    """A file is not read; the message is the reason, without the file's name."""


def read_plain(path: Path) -> bytes:
    """Content of an image file.

    Raises :class:`NotPlainError` when `path` is not a plain file or has more than 256 MB, and OSError as `open` does.
    """
    # O_NONBLOCK, because opening a pipe without a writer would otherwise block forever.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        status = os.fstat(stream.fileno())
        _check_kind(status)
        if status.st_size > MOST_BYTES:
            raise NotPlainError(
                f"has {status.st_size / 1e6:,.0f} MB; an image file may have {MOST_BYTES / 1e6:,.0f}"
            )
        return stream.read(MOST_BYTES)


def check_link(path: Path) -> None:
    """Raises :class:`DataError` when `path` is a link that leads to no file or folder."""
    if path.is_symlink() and not path.exists():
        raise DataError(
            f"{path}: a link to {path.readlink()}, which leads to no file. Correct or remove the link."
        )


def check_plain(path: Path) -> None:
    """Raises :class:`DataError` when `path`, or the target of a link, is not a plain file or its name is not UTF-8."""
    check_link(path)
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{str(path)!r}: its name is not UTF-8, as names in a dataset are. Rename it."
        ) from error
    try:
        _check_kind(path.stat())
    except NotPlainError as error:
        raise DataError(f"{path}: {error}. Remove it, or put a copy of the data in its place.") from error


def _check_kind(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kinds = {
            stat.S_IFIFO: "a pipe",
            stat.S_IFCHR: "a device",
            stat.S_IFBLK: "a device",
            stat.S_IFSOCK: "a socket",
        }
        kind = kinds.get(stat.S_IFMT(status.st_mode), "a folder")
        raise NotPlainError(f"is {kind}, not a plain file")
