"""The process environment of a local run: quiet libraries, and Prefect's state under `EVERGREEN_HOME`.

The command line sets it up before large libraries are imported. Variables that the user has set take precedence.
"""

import logging
import os
import sys
import tomllib
import warnings
from collections.abc import Mapping
from pathlib import Path

from training.errors import SettingError
from training.printable import PrintableFilter
from training.storage.given_paths import expanded
from training.storage.paths import Home, sqlite_url
from training.telemetry import switch_off

_QUIET = {
    "PREFECT_LOGGING_LEVEL": "CRITICAL",  # the command itself reports errors
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_LOG_TO_DRIVER": "0",
    "PYTHONWARNINGS": "ignore",  # for child processes
    "TQDM_DISABLE": "1",
}
_THIS_MACHINE = ("127.0.0.1", "localhost")
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
    "urllib3",  # warns before each retry of a request to MLflow; an error follows when the retries are used up
    "py.warnings",
)

# These log a failure with its traceback; the command itself reports the failure in one sentence.
_SAID_AGAIN = ("prefect", "prefect.flow_runs", "prefect.task_runs")


_PRINTABLE = PrintableFilter()
_set_here: dict[str, str] = {}  # variables that this module has set, with their values


def prepare(home: Home) -> None:
    """Set up the environment of this process and of its child processes for a local run.

    A later call for another home replaces the values of the earlier call, but none that the user has set.
    """
    switch_off()
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    _reach_this_machine_directly()
    if not api_is_configured():
        local = {
            "PREFECT_HOME": str(home.prefect),
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
            "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
            **NO_SERVICES,
        }
        if "?" in str(home.prefect):  # in the URL that Prefect builds, "?" would end the path
            local["PREFECT_API_DATABASE_CONNECTION_URL"] = sqlite_url(
                home.prefect / "prefect.db", "sqlite+aiosqlite"
            )
    else:
        local = {}
    _set(local | {"MPLCONFIGDIR": str(home.root / "cache" / "matplotlib")})
    quieten()


def _reach_this_machine_directly() -> None:
    """Name this machine in NO_PROXY, in each spelling that is set: a proxy can't reach the servers of a local run.

    Libraries differ in the spelling that they prefer.
    """
    for name in [name for name in ("no_proxy", "NO_PROXY") if name in os.environ] or ["NO_PROXY"]:
        hosts = [host.strip() for host in os.environ.get(name, "").split(",") if host.strip()]
        if "*" not in hosts:
            os.environ[name] = ",".join(dict.fromkeys([*hosts, *_THIS_MACHINE]))


def _set(variables: Mapping[str, str]) -> None:
    """Set variables that the user has not set, and remove those that an earlier call alone has set."""
    for name in [name for name, value in _set_here.items() if os.environ.get(name) == value]:
        del os.environ[name], _set_here[name]
    for name, value in variables.items():
        if name not in os.environ:
            os.environ[name] = _set_here[name] = value


def api_is_configured() -> bool:
    """Whether the user has configured a Prefect server, in the environment or in the active profile.

    The profile is read without importing Prefect, because the environment at the time of the import decides where
    Prefect keeps its state. Raises :class:`SettingError` when the file of profiles is damaged, whatever the environment
    says: Prefect itself reads the file when it is imported.
    """
    in_profile = _profile_has_api()
    return bool(os.environ.get("PREFECT_API_URL")) or in_profile


def _profile_has_api() -> bool:
    folder = expanded(os.environ.get("PREFECT_HOME", "~/.prefect"), "PREFECT_HOME")
    file = Path(os.environ.get("PREFECT_PROFILES_PATH", folder / "profiles.toml"))
    if not file.is_file():
        return False
    try:
        profiles = tomllib.loads(file.read_text(encoding="utf-8"))
        active = os.environ.get("PREFECT_PROFILE", profiles.get("active", ""))
        return bool(profiles.get("profiles", {}).get(active, {}).get("PREFECT_API_URL"))
    except (ValueError, AttributeError, TypeError) as error:  # the last two: a value in place of a table
        raise SettingError(
            f"{file}: Prefect's profiles can't be read ({error}). Repair the file, or move it away: Prefect makes a "
            "new one when it needs one."
        ) from error


def enable_logging() -> None:
    """Set the level of Evergreen's log to INFO unless a level is set already; Prefect only attaches its handlers."""
    logger = logging.getLogger("evergreen")
    for handler in logger.handlers:
        handler.addFilter(_PRINTABLE)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


def quieten() -> None:
    """Silence warnings and log messages that a user of this command can't act on; errors are still shown."""
    warnings.filterwarnings("ignore")
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
    for name in _SAID_AGAIN:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def log_to_terminal(verbose: bool, quiet: bool) -> None:
    """Send Evergreen's own log to standard error, one short line for each message."""
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
