"""The process environment of a local run: quiet libraries, and Prefect's own state under `EVERGREEN_HOME`.

Called by the command line before anything heavy is imported. What the user has set wins.
"""

import logging
import os
import sys
import tomllib
import warnings
from pathlib import Path

from training.printable import PrintableFilter
from training.storage.paths import Home, sqlite_url

_QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",  # the command says what went wrong itself
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_LOG_TO_DRIVER": "0",
    "PYTHONWARNINGS": "ignore",  # of processes that are started from here
    "TQDM_DISABLE": "1",
    "NO_PROXY": "127.0.0.1,localhost",  # a proxy can't reach the servers of this machine
}
_SERVICES = (
    "SCHEDULER",
    "LATE_RUNS",
    "FOREMAN",
    "PAUSE_EXPIRATIONS",
    "REPOSSESSOR",
    "CANCELLATION_CLEANUP",
    "TRIGGERS",
    "EVENT_PERSISTER",
    "EVENT_LOGGER",
)
# A local run needs none of the Prefect server's background services; they only take CPU from training.
NO_SERVICES = {f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "false" for service in _SERVICES}
_NOISY = (
    "mlflow",
    "alembic",
    "ray",
    "ray.data",
    "ray.train",
    "ray.tune",
    "httpx",
    "torch",
    "urllib3",  # warns before each retry of a request to MLflow; the end of the retries is an error of its own
    "py.warnings",
)

# These log a failure with its traceback, which the command says in a sentence.
_SAID_AGAIN = ("prefect", "prefect.flow_runs", "prefect.task_runs")


_PRINTABLE = PrintableFilter()


def prepare(place: Home) -> None:
    """Set the environment of this process and its children up for a local run."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    if not api_is_configured():
        local = {
            "PREFECT_HOME": str(place.prefect),
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
            "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
            **NO_SERVICES,
        }
        if "?" in str(place.prefect):  # which Prefect's own URL would end the path at
            local["PREFECT_API_DATABASE_CONNECTION_URL"] = sqlite_url(
                place.prefect / "prefect.db", "sqlite+aiosqlite"
            )
        for name, value in local.items():
            os.environ.setdefault(name, value)
    os.environ.setdefault("MPLCONFIGDIR", str(place.root / "cache" / "matplotlib"))
    quieten()


def api_is_configured() -> bool:
    """Whether the user has a Prefect server: in the environment, or in the active profile.

    The profile is read without importing Prefect, since what Prefect finds on import decides where it keeps state.
    """
    if os.environ.get("PREFECT_API_URL"):
        return True
    folder = Path(os.environ.get("PREFECT_HOME", Path.home() / ".prefect"))
    file = Path(os.environ.get("PREFECT_PROFILES_PATH", folder / "profiles.toml"))
    if not file.is_file():
        return False
    profiles = tomllib.loads(file.read_text(encoding="utf-8"))
    active = os.environ.get("PREFECT_PROFILE", profiles.get("active", ""))
    return bool(profiles.get("profiles", {}).get(active, {}).get("PREFECT_API_URL"))


def enable_logging() -> None:
    """Let Evergreen's log through from INFO on where nobody chose a level; Prefect only attaches its handlers."""
    logger = logging.getLogger("evergreen")
    for handler in logger.handlers:
        handler.addFilter(_PRINTABLE)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


def quieten() -> None:
    """Silence what a user of this command can't act on; errors still come through."""
    warnings.filterwarnings("ignore")
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
    for name in _SAID_AGAIN:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def log_to_terminal(verbose: bool, quiet: bool) -> None:
    """Send Evergreen's own log to standard error, one short line each."""
    handler: logging.Handler
    if sys.stderr.isatty():
        from rich.logging import RichHandler

        from tasks.terminal.progress import terminal

        handler = RichHandler(
            console=terminal(), show_path=False, show_level=verbose, log_time_format="%H:%M:%S"
        )
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    handler.addFilter(_PRINTABLE)
    logger = logging.getLogger("evergreen")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
