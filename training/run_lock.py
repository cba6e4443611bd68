"""What keeps two runs of a recipe apart."""

from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from training.errors import TransientError
from training.paths import Home

_LOOK_S = 1.0  # `evergreen doctor` and `verify` hold a lock for a moment to see whether it is free


@contextmanager
def run_lock(home: Home, recipe: str) -> Iterator[None]:
    """One run of a recipe at a time in a home; the lock dies with its holder.

    Raises :class:`TransientError` when another run holds it.
    """
    home.locks.mkdir(parents=True, exist_ok=True)
    lock = FileLock(home.locks / f"run-{recipe}.lock")
    try:
        lock.acquire(timeout=_LOOK_S)
    except Timeout as error:
        raise TransientError(
            f"recipe {recipe}: another run holds {lock.lock_file}. Wait for it to end, then run the same command."
        ) from error
    try:
        yield
    finally:
        lock.release()
