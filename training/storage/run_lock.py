"""What keeps two runs of a recipe apart."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from training.errors import TransientError
from training.storage.paths import Home

_LOOK_S = 1.0  # `evergreen doctor` and `verify` hold a lock for a moment to see whether it is free


@contextmanager
def run_lock(home: Home, recipe: str) -> Iterator[None]:
    """One run of a recipe at a time in a home; the lock dies with its holder.

    Raises :class:`TransientError` when another run holds it.
    """
    home.locks.mkdir(parents=True, exist_ok=True)
    lock = FileLock(_file(home, recipe))
    try:
        lock.acquire(timeout=_LOOK_S)
    except Timeout as error:
        raise _held(home, recipe) from error
    try:
        yield
    finally:
        lock.release()


def check_no_run(home: Home, recipe: str) -> None:
    """For a command that only looks: the lock's file is neither made nor changed, and a run may begin right after.

    Raises :class:`TransientError` when a run holds the lock.
    """
    file = _file(home, recipe)
    if not file.is_file():  # then no run has begun yet
        return
    with file.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _held(home, recipe) from error


def _file(home: Home, recipe: str) -> Path:
    return home.locks / f"run-{recipe}.lock"


def _held(home: Home, recipe: str) -> TransientError:
    return TransientError(
        f"recipe {recipe}: another run holds {_file(home, recipe)}. Wait for it to end, then run the same command."
    )
