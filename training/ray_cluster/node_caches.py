"""The folder on each node with the datasets that workers downloaded from an object store.

A worker holds a lock of the version that it reads (`<version>.used`, shared by all of them), so that nobody removes
that version meanwhile. The operating system frees the lock when the worker dies.
"""

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from training.errors import ResourceError
from training.storage.files import HALF_DONE, remove_folder
from training.storage.given_paths import expanded
from training.storage.paths import is_key_name
from training.storage.scratch import temporaries

DATASETS = "datasets"
_KEPT = 2  # versions of a dataset that a node keeps
_UNUSED_S = 7 * 86400.0


class Unused(NamedTuple):
    """A folder in a node's cache that no process uses, and the reason for that conclusion."""

    path: Path
    why: str


def node_cache(chosen: str | None) -> Path:
    """The folder for downloaded datasets on this node: `chosen`, or one of this user among the temporary files.

    Raises :class:`ResourceError` if other users may write to that folder.
    """
    folder = cache_folder(chosen)
    if chosen is not None:
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_own(folder):
        raise ResourceError(
            f"{folder}: other users may write to it. Remove it, or set storage.node_cache to another folder."
        )
    return folder


def cache_folder(chosen: str | None) -> Path:
    """The path of :func:`node_cache`, which may not exist."""
    if chosen is not None:
        return expanded(chosen, "storage.node_cache")
    return next(iter(temporaries()), Path("/tmp")) / f".evergreen-datasets-{os.getuid()}"


def _is_own(folder: Path) -> bool:
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Within the block, nobody removes the version in `folder`, which may not exist yet."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".used").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        yield


def forget_old(newest: Path) -> None:
    """Remove the versions of a dataset except the two that were used last and those in use."""
    versions = [path for path in newest.parent.iterdir() if path.is_dir() and is_key_name(path.name)]
    for path in sorted(versions, key=lambda path: path.stat().st_mtime, reverse=True)[_KEPT:]:
        remove_unused(path)


def remove_unused(folder: Path) -> None:
    """Remove a version, or what is left of a download, unless a process uses it."""
    with _lock_of(folder).open("a") as held, suppress(BlockingIOError):
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_folder(folder)


def unused(chosen: str | None) -> Iterator[Unused]:
    """Versions in the cache that no training began with for a week, and what killed processes left of downloads.

    A cache that this user does not own is skipped, and so is a folder whose name is not that of a version. Changes no
    file.
    """
    cache = cache_folder(chosen)
    if not cache.is_dir() or (chosen is None and not _is_own(cache)):
        return
    for recipe in sorted((cache / DATASETS).glob("*")):
        left = {path for pattern in HALF_DONE for path in recipe.glob(pattern)}
        for path in sorted(path for path in recipe.glob("*") if path.is_dir() and _is_free(path)):
            quiet_s = time.time() - path.stat().st_mtime
            if path in left:
                yield Unused(path, "left by a download whose process is gone")
            elif is_key_name(path.name) and quiet_s > _UNUSED_S:
                yield Unused(path, f"no training began with it for {quiet_s / 86400:.0f} days")


def _lock_of(folder: Path) -> Path:
    """The lock of the readers of a version, or, for a folder that is not complete, of the process that downloads it."""
    if not folder.name.startswith("."):
        return folder.with_suffix(".used")
    return folder.with_name(f"{folder.name.split('.')[1]}.lock")


def _is_free(folder: Path) -> bool:
    with suppress(FileNotFoundError), _lock_of(folder).open() as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
