"""Files that others made, read only when they are plain files of a sane size.

A pipe would be waited for without end, and a device such as /dev/zero never ends; both can stand behind a link.
"""

import os
import stat
from pathlib import Path

from training.errors import DataError

MOST_BYTES = 256_000_000  # of one image file


class NotPlainError(Exception):
    """Why a file is not read; the message does not name the file."""


def read_plain(path: Path) -> bytes:
    """Content of an image file.

    Raises :class:`NotPlainError` for what is no plain file or has more than 256 MB, and OSError as `open` does.
    """
    # Without waiting: to open a pipe that nobody writes to would take for ever.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        status = os.fstat(stream.fileno())
        _check_kind(status)
        if status.st_size > MOST_BYTES:
            raise NotPlainError(
                f"has {status.st_size / 1e6:,.0f} MB; an image file may have {MOST_BYTES / 1e6:,.0f}"
            )
        return stream.read(MOST_BYTES)


def check_plain(path: Path) -> None:
    """Raises :class:`DataError` when `path` leads to something else than a plain file."""
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
