"""In: the address of an MLflow store. Out: a client of the store, or an error that says why it can't be used.

Credentials in the address are passed to MLflow in its environment variables, because MLflow writes the address into
errors and logs. So a process can use one server with such credentials at a time.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tasks.trackers.embedded_store import store_file
from tasks.trackers.empty_stores import MLFLOW, copy_empty
from training.errors import EvergreenError, OutageError, ResourceError, SettingError, TransientError
from training.plan import RunPlan
from training.redaction import redact
from training.storage.paths import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.tracking")

NO_PICKLE = {"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}  # a model from the registry must not run code
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",  # the default waits over four minutes for a dead server
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
_CREDENTIALS = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
_SETTING = threading.Lock()
# Values of these variables before an address replaced them; None: not set.
_replaced: dict[str, str | None] = {}
_REFUSED = (401, 403)
_NO_API = (404, 405)
_NO_JSON = "not in a valid JSON format"  # in MLflow's error about a page in place of an answer
_IMPORT = threading.Lock()  # threads that import MLflow concurrently would see partially initialised modules


class NoMlflowError(TransientError):
    """At the address of MLflow's server, something else answers: a wrong address, or a proxy whose server is away."""


def connect(uri: str | None, home: Home) -> "MlflowClient":
    """Connect to the MLflow store at `uri`, or to the store embedded under `home` when `uri` is None.

    Raises :class:`ResourceError` when a SQLite store can't be opened, :class:`TransientError` when a server does not
    answer or a store is locked, and :class:`SettingError` when a server refuses the credentials or `uri` is not the
    address of a store.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ |= NO_PICKLE  # overrides the user's value
    with _IMPORT:
        import mlflow
        import mlflow.entities
        from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    # This logger prints a traceback of errors that MLflow then raises: a full disk, a locked file.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    address = uri or home.mlflow_uri
    if not uri:
        copy_empty(MLFLOW, store_file(home))
    try:
        address = _without_credentials(address)
        mlflow.set_tracking_uri(address)
        mlflow.set_registry_uri(address)
        client = mlflow.MlflowClient(tracking_uri=address, registry_uri=address)
        client.search_experiments(max_results=1)
    except (MlflowException, SQLAlchemyError, ImportError, ValueError) as error:
        raise _unusable(address, error) from error
    return client


def connect_once(plan: RunPlan) -> "MlflowClient":
    """:func:`connect` to the run's store, without waiting for a server that does not answer."""
    return connect(plan.settings.tracking.uri, Home(Path(plan.home)))


def connect_patiently(plan: RunPlan) -> "MlflowClient":
    """:func:`connect` to the run's store, with retries for `tracking.outage_s` seconds while it does not answer.

    Raises :class:`OutageError` when the store does not answer within that time.
    """
    return patiently(lambda: connect_once(plan), plan.settings.tracking.outage_s)


def patiently(connect: "Callable[[], MlflowClient]", outage_s: float) -> "MlflowClient":
    """The result of `connect`, called again for `outage_s` seconds while the store does not answer.

    Raises :class:`OutageError` when the store does not answer within that time.
    """
    deadline = time.monotonic() + outage_s
    pause = FIRST_PAUSE_S
    while True:
        try:
            return connect()
        except TransientError as error:
            if time.monotonic() + pause > deadline:
                raise OutageError(str(error)) from error
            log.warning("%s; trying again in %.0f s", error, pause)
        time.sleep(pause)
        pause = min(LONGEST_PAUSE_S, 2 * pause)


def _without_credentials(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not parts.username or not parts.password:
        _set_credentials({})
        return uri
    given = (unquote(parts.username), unquote(parts.password))
    _set_credentials(dict(zip(_CREDENTIALS, given, strict=True)))
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _set_credentials(given: dict[str, str]) -> None:
    """Set the variables `given`; without `given`, restore the user's values, which another address had replaced."""
    with _SETTING:
        for name in _CREDENTIALS:
            if name in given:
                _replaced.setdefault(name, os.environ.get(name))
                os.environ[name] = given[name]
            elif name in _replaced:
                own = _replaced.pop(name)
                os.environ.pop(name, None)
                os.environ |= {name: own} if own is not None else {}


def _unusable(address: str, error: Exception) -> EvergreenError:
    """The error that says why the store at `address` can't be used, and what to do."""
    shown, reason = redact(address), redact(str(getattr(error, "message", error)).partition("\n")[0])
    scheme = address.partition(":")[0]
    if scheme in ("http", "https"):
        return _server_says_no(shown, reason, error)
    if scheme.partition("+")[0] == "sqlite":
        return _file_says_no(shown, reason, "database is locked" in str(error))
    unavailable = getattr(error, "error_code", None) == "TEMPORARILY_UNAVAILABLE"
    if unavailable or type(error).__name__ == "OperationalError":
        return TransientError(f"tracking.uri {shown}: the database does not answer ({reason})")
    return SettingError(
        f"tracking.uri: {shown} is not where MLflow can record ({reason}). Use http(s)://host:port of a server, "
        "a database whose driver is installed, or leave tracking.uri out for the store under EVERGREEN_HOME."
    )


def _server_says_no(shown: str, reason: str, error: Exception) -> EvergreenError:
    if isinstance(error, ValueError):
        return SettingError(f"tracking.uri: {shown} is no address ({reason})")
    status = error.get_http_status_code() if hasattr(error, "get_http_status_code") else 500
    if status in _REFUSED:
        return SettingError(
            f"tracking.uri {shown}: MLflow refuses the credentials (status {status}). Set MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN."
        )
    if status in _NO_API or _NO_JSON in str(error):
        return NoMlflowError(
            f"tracking.uri {shown}: something answers there that is not MLflow's API ({reason}). Correct the address "
            "and the path in it, or give the credentials that a login page asks for."
        )
    return TransientError(f"tracking.uri {shown}: MLflow does not answer ({reason})")


def _file_says_no(shown: str, reason: str, is_locked: bool) -> EvergreenError:
    if is_locked:
        return TransientError(
            f"MLflow store {shown}: another process has locked the store ({reason}). Run the same command again."
        )
    return ResourceError(
        f"MLflow store {shown}: {reason}. After an update of MLflow, `mlflow db upgrade {shown}` brings it up to date; "
        "replace a damaged file by a backup."
    )
