"""Folders of worker processes among a node's temporary files, and removal of those that killed workers left.

A process holds a lock on a file in its folder. The operating system frees the lock when the process dies, also in
another container, where process ids differ.
"""

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from training.storage.files import TEMPORARY_PREFIX, temporary_folder

log = logging.getLogger("evergreen.scratch")

_HELD = ".held"


def temporaries() -> list[Path]:
    """The folders that may have temporary files of this machine's processes: Python's choice, then TMPDIR or /tmp.

    Python chooses another folder than the latter, or none, when that is full.
    """
    folders = [Path(os.environ.get("TMPDIR") or "/tmp")]
    with suppress(FileNotFoundError):
        folders.insert(0, Path(tempfile.gettempdir()))
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """Yield a temporary folder as :func:`temporary_folder`; first removes those of this purpose without owner."""
    for folder in [
        path for parent in temporaries() for path in parent.glob(f"{TEMPORARY_PREFIX}{purpose}-*")
    ]:
        with suppress(OSError):  # removed meanwhile, or of another user
            if is_abandoned(folder):
                log.info("removing %s, which a killed process left", folder)
                shutil.rmtree(folder, ignore_errors=True)
    with temporary_folder(purpose) as folder, (folder / f"{_HELD}.new").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        # Only now, so that no other process finds the file unlocked.
        (folder / f"{_HELD}.new").rename(folder / _HELD)
        yield folder


def is_abandoned(folder: Path) -> bool:
    """Whether no process holds the folder. Raises FileNotFoundError for a folder without a lock.

    `evergreen gc` judges such a folder by the id of its process.
    """
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        return False
    with (folder / _HELD).open() as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
