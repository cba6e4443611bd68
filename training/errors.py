"""Error classes with their exit statuses, and the classification of any error: its kind, and whether to retry.

Every error that a user can meet is an :class:`EvergreenError` whose message names the field, file or row, the rule
that was broken and the remedy. Any other error that escapes is a bug and exits with status 1.
"""

import errno
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from training.http_errors import REFUSED, address_of, status_of
from training.printable import printable

if TYPE_CHECKING:
    from training.profile_records import DataCheck

EXIT_OK = 0
EXIT_BUG = 1
EXIT_BAD_SETTING = 2
EXIT_BAD_DATA = 3
EXIT_TRAINING_FAILED = 4
EXIT_RESOURCE = 5
EXIT_HELD = 6
EXIT_RETRY = 75  # EX_TEMPFAIL of sysexits.h: the same command may succeed later
EXIT_INTERRUPTED = 130
EXIT_OUTPUT_CLOSED = 141  # 128 + SIGPIPE, as a shell reports a program whose output pipe was closed
EXIT_TERMINATED = 143  # 128 + SIGTERM, which service managers treat as a clean exit


class EvergreenError(Exception):
    """Base class of errors with a message for the user.

    The process exits with `exit_status`. A `transient` error may be retried. After a `final` error, transient or not,
    nothing is retried until the user runs the command again.
    """

    exit_status = EXIT_BUG
    transient = False
    final = False

    def __str__(self) -> str:
        """The message, with control characters escaped: foreign names in it can't control the terminal."""
        return printable(super().__str__())


class SettingError(EvergreenError):
    """A setting is unknown, invalid, or contradicts another setting or the data; nothing was trained."""

    exit_status = EXIT_BAD_SETTING


class DataError(EvergreenError):
    """A source file or a row breaks a rule; nothing was written under a final name."""

    exit_status = EXIT_BAD_DATA


class HeldError(EvergreenError):
    """The data changed since the champion's as only a mistake does: nothing is trained until a person looked.

    `check` is the comparison, which names all changes.
    """

    exit_status = EXIT_HELD
    final = True

    def __init__(self, check: "DataCheck"):
        super().__init__(check.summary)
        self.check = check


class TrainingError(EvergreenError):
    """Training itself failed for good: a diverged loss, a model that does not fit the data."""

    exit_status = EXIT_TRAINING_FAILED


class ResourceError(EvergreenError):
    """The machine lacks a resource (disk, memory, a writable folder); once fixed, the same command resumes."""

    exit_status = EXIT_RESOURCE


class TransientError(EvergreenError):
    """A temporary failure (network, lost worker, busy lock): the same command is likely to succeed later."""

    exit_status = EXIT_RETRY
    transient = True


class PeerError(TransientError):
    """A worker can't go on because another worker failed, whose own error explains both."""


class OutageError(TransientError):
    """A server did not answer for as long as the settings allow; the step that waited is not retried.

    A deployment may still retry the whole run.
    """


class StopRequestedError(TransientError):
    """Training was stopped on request, after a last checkpoint if it was saved within `failure.stop_timeout_s`."""

    exit_status = EXIT_INTERRUPTED
    final = True


_RESOURCE_ERRNO = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission was denied",
    errno.EPERM: "the operation is not permitted",
    errno.EFBIG: "the file would exceed the size limit",
    errno.EIO: "the disk reports an error",
    errno.ENOMEM: "memory is used up",
}
# Attributes in which Ray stores the error that it wraps.
_WRAPPED = ("cause", "_base_exc", "controller_failure")
_AGAIN = "Run the same command again, which resumes the run."
_CURED = "Remove the cause, and run the same command, which resumes the run."
_TRACEBACK = "Traceback (most recent call last)"
# Start of the line that follows a traceback's frames and names the exception.
_RAISED = re.compile(r"[\w.]*(Error|Exception|Exit|Interrupt)\b")
# Parts of the message when a peer of a collective operation has gone; gloo and NCCL raise a plain RuntimeError.
_LOST_PEER = ("gloo", "nccl", "connection closed by peer", "connection reset by peer")
# In messages of torch and of network/loader_feed.py.
_LOST_LOADER = ("dataloader worker (pid", "dataloader worker closed its connection")
_SHORT_OF = (
    "disk is full",
    "no space left",
    "readonly database",
    "unable to open database file",
    "can't allocate memory",
    "pytorchstreamwriter failed writing",
    "file write failed",
    "no usable temporary directory",
)
_MLFLOW = frozenset({"MlflowException", "RestException"})
# In messages of SQLAlchemy: InternalError, InterfaceError, OperationalError, and a pool without a free connection.
_DATABASE = ("/2j85", "/rvf5", "/e3q8", "/3o7r", "queuepool limit")
_TRY_AGAIN = frozenset({429, 500, 502, 503, 504})
_NO_SERVER = ("prefect api server",)
_PREFECT_STATUS = "PrefectHTTPStatusError"
_OTHER_VERSION = "Found incompatible versions"  # how Prefect's client begins its message
_TRANSIENT_NAMES = frozenset(
    {
        "ActorDiedError",
        "ActorPlacementGroupRemoved",
        "ActorUnavailableError",
        "ActorUnschedulableError",
        "CloseError",
        "ConnectError",
        "ConnectTimeout",
        "DistBackendError",
        "DistNetworkError",
        "DistStoreError",
        "LocalRayletDiedError",
        "NodeDiedError",
        "ObjectFetchTimedOutError",
        "ObjectLostError",
        "ObjectReconstructionFailedError",
        "OwnerDiedError",
        "PoolTimeout",
        "PreemptionError",
        "RayActorError",
        "RaySystemError",
        "ReadError",
        "ReadTimeout",
        "RemoteProtocolError",
        "RpcError",
        "TaskPlacementGroupRemoved",
        "TaskUnschedulableError",
        "URLError",
        "WorkerCrashedError",
        "WorkerGroupStartupFailedError",
        "WorkerHealthCheckFailedError",
        "WorkerHealthCheckTimeoutError",
        "WriteError",
        "WriteTimeout",
    }
)


def causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and all errors that it wraps or came from, outermost first; Ray and Prefect wrap workers' errors."""
    seen: set[int] = set()
    queue: list[BaseException | None] = [error]
    while queue:
        cause = queue.pop(0)
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        failures = getattr(cause, "worker_failures", None)  # ray.train.WorkerGroupError: {rank: error}
        queue += list(failures.values()) if isinstance(failures, dict) else []
        queue += [getattr(cause, name, None) for name in _WRAPPED]
        queue += [cause.__cause__, cause.__context__]


def classify(error: BaseException) -> EvergreenError | None:
    """The :class:`EvergreenError` that explains `error` to the user; None for a bug, which needs its traceback."""
    chain = list(causes(error))
    for cause in chain:
        if isinstance(cause, EvergreenError) and not isinstance(cause, PeerError):
            return cause
    for cause in chain:
        if (
            refused := _refused_by_prefect(cause) or _refused_by_mlflow(cause) or _refused_file(cause)
        ) is not None:
            return refused
    for cause in chain:
        if (lacking := _lacking(cause)) is not None:
            return lacking
    for cause in chain:
        if (passing := _passing(cause)) is not None:
            return passing
    return next((cause for cause in chain if isinstance(cause, PeerError)), None)


def _refused_by_prefect(error: BaseException) -> EvergreenError | None:
    """The error to show when Prefect's server answered with a status that a user can remedy; else None."""
    if type(error) is RuntimeError and str(error).startswith(_OTHER_VERSION):
        return SettingError(
            f"Prefect's server has another version ({_first_line(error)}). Install the same version of Prefect "
            "there and here; `evergreen doctor` shows both."
        )
    if type(error).__name__ != _PREFECT_STATUS:
        return None
    status = status_of(error)
    server = f"Prefect server {address_of(error)}"
    if status in REFUSED:
        return SettingError(
            f"{server} refuses the credentials (status {status}). Set PREFECT_API_AUTH_STRING to the user:password of "
            "the server's PREFECT_SERVER_API_AUTH_STRING, or, for Prefect Cloud, PREFECT_API_KEY to a key that has the "
            "permission; `evergreen doctor` checks the credentials."
        )
    if status == 413:
        return ResourceError(
            f"{server}, or a proxy in front of the server, refuses a request as too large (status 413). Raise the "
            "limit there (nginx: client_max_body_size), and run the same command, which resumes the run."
        )
    if status in _TRY_AGAIN or status >= 500:
        return TransientError(f"{server} fails (status {status}). Read the server's log. {_AGAIN}")
    return None


def _refused_by_mlflow(error: BaseException) -> SettingError | None:
    """The error to show when MLflow's server refuses a request for lack of permission; else None."""
    if type(error).__name__ not in _MLFLOW or (status := _status(error)) not in REFUSED:
        return None
    return SettingError(
        f"MLflow's server refuses a request (status {status}: {_first_line(error)}). Set MLFLOW_TRACKING_USERNAME and "
        "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, to an account that may create runs in the experiment and "
        "versions of the model, or have this permission granted to the account. Then run the same command, which "
        "resumes the run."
    )


def _refused_file(error: BaseException) -> EvergreenError | None:
    """The error to show when a server refuses a request of the library requests, by which MLflow sends artifacts."""
    if type(error).__name__ != "HTTPError" or not type(error).__module__.startswith("requests"):
        return None
    status = status_of(error)
    if status in REFUSED:
        return SettingError(
            f"a server refuses a request ({_first_line(error)}). If the server is MLflow's, grant this account access "
            "to artifacts."
        )
    if status == 413:
        return ResourceError(
            f"a server, or a proxy in front of the server, refuses a request as too large ({_first_line(error)}). "
            "Raise the limit there (nginx: client_max_body_size), and run the same command, which resumes the run."
        )
    if status in _TRY_AGAIN or status >= 500:
        return TransientError(f"a server does not answer a request ({_first_line(error)}). {_AGAIN}")
    return None


def _lacking(error: BaseException) -> ResourceError | None:
    """The error to show when `error` means that the machine lacks a resource; else None."""
    if isinstance(error, OSError) and error.errno in _RESOURCE_ERRNO:
        location = f" at {error.filename}" if error.filename else ""
        return ResourceError(f"{_RESOURCE_ERRNO[error.errno].capitalize()}{location}. {_CURED}")
    text = str(error).lower()
    named = type(error).__name__ in {"ObjectStoreFullError", "OutOfMemoryError", "OutOfDiskError"}
    if named or isinstance(error, MemoryError) or "memoryerror" in text:  # torch and Ray wrap MemoryError
        return ResourceError(
            f"Out of memory or disk: {_gist(error)}. Lower training.global_batch_size or scaling.num_workers, "
            "or free memory or disk, and run the same command, which resumes the run."
        )
    if any(sign in text for sign in _SHORT_OF):
        return ResourceError(
            f"The machine is short of disk or memory, or a store can't be written ({_first_line(error)}). "
            f"{_CURED}"
        )
    return None


def _passing(error: BaseException) -> TransientError | None:
    """The error to show when `error` means a temporary failure, which a retry may avoid; else None."""
    text = str(error).lower()
    if type(error) is RuntimeError and any(sign in text for sign in _NO_SERVER):
        return TransientError(
            f"Prefect's server did not start ({_first_line(error)}). Read its output above, and run `evergreen doctor`."
        )
    if type(error) is RuntimeError and any(sign in text for sign in _LOST_PEER):
        return TransientError(f"a training worker lost its peers ({_first_line(error)}). {_AGAIN}")
    if type(error) is RuntimeError and any(sign in text for sign in _LOST_LOADER):
        return TransientError(
            f"a process of the DataLoader died ({_first_line(error)}). If it happens again, the machine may lack "
            f"memory: lower data.loader_processes or data.loader_prefetch. {_AGAIN}"
        )
    if type(error).__name__ in _MLFLOW and _status(error) in _TRY_AGAIN:
        return TransientError(f"MLflow does not answer ({_first_line(error)}). {_AGAIN}")
    if type(error).__name__ in _MLFLOW and any(sign in text for sign in _DATABASE):  # with status 400
        return TransientError(f"MLflow's database fails ({_first_line(error)}). {_AGAIN}")
    # The remedy in Ray's message is a variable that Evergreen sets, so it is cut off.
    if type(error).__name__ == "WorkerGroupStartupTimeoutError":
        return TransientError(
            f"{_gist(error).partition(' Potential')[0]} The cluster has too few free resources, or is busy: free some, "
            "add nodes, or raise failure.worker_start_timeout_s, and run the same command, which resumes the run."
        )
    if isinstance(error, OSError) and error.errno == errno.ESTALE:
        return TransientError(f"{error}: a shared folder is not available any more. {_AGAIN}")
    if isinstance(error, ConnectionError | TimeoutError) or type(error).__name__ in _TRANSIENT_NAMES:
        location = f" ({where})" if (where := address_of(error)) else ""
        return TransientError(f"{type(error).__name__}{location}: {_gist(error)}. {_AGAIN}")
    return None


def _status(error: BaseException) -> int:
    """HTTP status of an MLflow error, else 0; MLflow's client gives 500 when the server does not answer at all."""
    ask = getattr(error, "get_http_status_code", None)
    return int(ask()) if ask else 0


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _gist(error: BaseException) -> str:
    """The first line of `error`, and the exception of a (maybe truncated) traceback that Ray put into the text."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    inner = [number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    if not inner:
        return " ".join(line.strip().rstrip(".") for line in lines[:1])
    raised = [line for line in lines[inner[-1] + 1 :] if _RAISED.match(line)]
    said = [line for line in lines[:1] if not line.startswith(_TRACEBACK)] + raised[:1]
    return " ".join(line.strip().rstrip(".") for line in said or lines[-1:])
