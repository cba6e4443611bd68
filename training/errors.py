"""The one place that says what kind of failure an error is, whether it is worth a retry, and the exit status.

Every error a user can meet is an :class:`EvergreenError` whose message names the field, file or row, the rule
that was broken and the remedy. Anything else that escapes is a bug and exits with status 1.
"""

import errno
from collections.abc import Iterator

EXIT_OK = 0
EXIT_BUG = 1
EXIT_BAD_SETTING = 2
EXIT_BAD_DATA = 3
EXIT_TRAINING_FAILED = 4
EXIT_RESOURCE = 5
EXIT_RETRY = 75  # EX_TEMPFAIL of sysexits.h: the same command may succeed later
EXIT_INTERRUPTED = 130


class EvergreenError(Exception):
    """An error with a message for the user; `exit_status` is the process's, `transient` asks for a retry."""

    exit_status = EXIT_BUG
    transient = False


class SettingError(EvergreenError):
    """A setting is unknown, impossible or contradicts another; nothing was started."""

    exit_status = EXIT_BAD_SETTING


class DataError(EvergreenError):
    """A source file or a row breaks a rule; nothing was written under a final name."""

    exit_status = EXIT_BAD_DATA


class TrainingError(EvergreenError):
    """Training itself failed for good: a diverged loss, a model that does not fit the data."""

    exit_status = EXIT_TRAINING_FAILED


class ResourceError(EvergreenError):
    """The machine lacks something (disk, memory, a writable folder); mend it, then the same command resumes."""

    exit_status = EXIT_RESOURCE


class TransientError(EvergreenError):
    """Network, a lost worker, a busy lock: the same command is likely to succeed later."""

    exit_status = EXIT_RETRY
    transient = True


_RESOURCE_ERRNO = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission was denied",
    errno.EPERM: "the operation is not permitted",
    errno.EFBIG: "the file would exceed the size limit",
}
# Attributes in which Ray keeps the error that it wraps.
_WRAPPED = ("cause", "_base_exc", "controller_failure")
_LOST_PEER = ("connection closed by peer", "connection reset", "connection refused", "socket timeout", "timed out", "nccl")
_TRANSIENT_NAMES = frozenset(
    {
        "ActorDiedError",
        "ConnectError",
        "NodeDiedError",
        "OwnerDiedError",
        "PreemptionError",
        "RayActorError",
        "ReadTimeout",
        "URLError",
        "WorkerCrashedError",
        "WorkerGroupStartupTimeoutError",
    }
)


def causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and what it came from, innermost last; Ray and Prefect wrap what a worker raised."""
    seen: set[int] = set()
    queue: list[BaseException | None] = [error]
    while queue:
        one = queue.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        failures = getattr(one, "worker_failures", None)  # ray.train.WorkerGroupError: {rank: error}
        queue += list(failures.values()) if isinstance(failures, dict) else []
        queue += [getattr(one, name, None) for name in _WRAPPED]
        queue += [one.__cause__, one.__context__]


def classify(error: BaseException) -> EvergreenError | None:
    """What `error` means to the user, or None for a bug that deserves its traceback."""
    chain = list(causes(error))
    for one in chain:
        if isinstance(one, EvergreenError):
            return one
    for one in chain:
        if isinstance(one, OSError) and one.errno in _RESOURCE_ERRNO:
            place = f" at {one.filename}" if one.filename else ""
            return ResourceError(
                f"{_RESOURCE_ERRNO[one.errno].capitalize()}{place}. Mend that and run the same command: it resumes."
            )
        if isinstance(one, MemoryError) or type(one).__name__ in {"OutOfMemoryError", "OutOfDiskError"}:
            return ResourceError(
                f"Out of memory or disk: {one}. Lower training.global_batch_size or scaling.num_workers, "
                "or free some, and run the same command: it resumes."
            )
    for one in chain:
        if _is_lost_peer(one):
            return TransientError(f"a training worker lost its peers ({one}). Run the same command again: it resumes.")
        if isinstance(one, ConnectionError | TimeoutError) or type(one).__name__ in _TRANSIENT_NAMES:
            return TransientError(f"{type(one).__name__}: {one}. Run the same command again: it resumes.")
    return None


def _is_lost_peer(error: BaseException) -> bool:
    """Whether a collective failed because another worker went away; gloo says so with a plain RuntimeError."""
    text = str(error).lower()
    return type(error) is RuntimeError and any(sign in text for sign in _LOST_PEER)
