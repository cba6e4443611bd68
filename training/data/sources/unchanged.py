"""The files of a source while a command reads them: a file that changes or is removed meanwhile is refused."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from training.errors import DataError
from training.storage.files import digest_file

log = logging.getLogger("evergreen.sources")


class KnownFile(NamedTuple):
    """The digest of a file's bytes, and its size and time of the last writing (ns) from before the bytes were read.

    Each writing changes the time, also a writing of the same bytes.
    """

    digest: str
    size: int
    written: int


@contextmanager
def gone_named(file: Path | None = None) -> Iterator[None]:
    """Turn a FileNotFoundError of the block into a :class:`DataError` that names the file that is gone.

    `file` is named when the error names no file: Arrow's errors don't.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(
            f"{error.filename or file}: gone while it was read. Run the command again, when nothing writes to the "
            "source."
        ) from error


def warn_of_copies(files: Sequence[tuple[str, str, int, Path]]) -> None:
    """Log a warning if files of a split have the same bytes, as a file and a link to the file: their rows count twice.

    `files` are sorted tuples of split, digest, size and path.
    """
    copies = [(one[-1], other[-1]) for one, other in pairwise(files) if one[:2] == other[:2]]
    if copies:
        log.warning(
            "%d files have the same bytes as another file of their split, such as %s and %s: their rows count twice. "
            "Keep one of them.",
            len(copies),
            *copies[0],
        )


def known_file(file: Path) -> KnownFile:
    """Digest and state of a file."""
    size, written = _state(file)
    return KnownFile(digest_file(file), size, written)


def check_still(known: Mapping[Path, KnownFile]) -> None:
    """Raise :class:`DataError` for a file that was written or removed since its digest was computed."""
    for file, before in known.items():
        with gone_named(file):
            if _state(file) != (before.size, before.written) or digest_file(file) != before.digest:
                raise DataError(f"{file}: changed while it was read. Run the command again.")


def _state(file: Path) -> tuple[int, int]:
    """Size, and time of the last writing. No inode, which some file systems do not keep."""
    status = file.stat()
    return status.st_size, status.st_mtime_ns
