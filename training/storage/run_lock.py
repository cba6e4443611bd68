"""The run lock: a home executes at most one run of a recipe at a time."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from training.errors import TransientError
from training.storage.paths import Home

_LOOK_S = 1.0  # `evergreen doctor` and `verify` hold the lock for a moment to test whether it is free


@contextmanager
def run_lock(home: Home, recipe: str) -> Iterator[None]:
    """Hold the lock of a recipe's runs for the block; the operating system frees the lock when its holder dies.

    Raises :class:`TransientError` when another run holds the lock.
    """
    home.locks.mkdir(parents=True, exist_ok=True)
    lock = FileLock(lock_file(home, recipe))
    try:
        lock.acquire(timeout=_LOOK_S)
    except Timeout as error:
        raise _held(home, recipe) from error
    try:
        yield
    finally:
        lock.release()


def check_no_run(home: Home, recipe: str) -> None:
    """Check that no run of a recipe is active, for a command that changes nothing, not even the lock's file.

    A run may begin right after the check. Raises :class:`TransientError` when a run holds the lock.
    """
    file = lock_file(home, recipe)
    if not file.is_file():  # then no run has begun yet
        return
    with file.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _held(home, recipe) from error


def lock_file(home: Home, recipe: str) -> Path:
    """The file of the lock that :func:`run_lock` holds."""
    return home.locks / f"run-{recipe}.lock"


def _held(home: Home, recipe: str) -> TransientError:
    return TransientError(
        f"recipe {recipe}: another run holds the lock {lock_file(home, recipe)}. Wait until that run ends, then run "
        "the same command again."
    )
