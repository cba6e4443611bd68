"""Starts a local Ray cluster for one run: closed to other users, without processes that the run does not need."""

import importlib
import logging
import os
import secrets
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from training.errors import ResourceError, SettingError, TransientError
from training.machine import available_cpus
from training.ray_cluster import patches
from training.ray_cluster.patient_start import LIMITS, agent_ports, waited_for_while_alive
from training.settings.schema import RaySettings

log = logging.getLogger("evergreen.cluster")

# Set before the first import of Ray; values that the user has set take precedence.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # A thread that calls Ray after its end, such as that of an interrupted search, would start another Ray.
    "RAY_ENABLE_AUTO_CONNECT": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # `uv run` would rebuild the environment on each worker
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # The watcher is another process beside the workers; training.supervision.preemption polls for draining nodes.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0",  # Ray Train's controller itself calls `get` in async code
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # workers keep the working directory of the command
    # Ray starts workers with a low priority (15), so they wait for everything else that the machine computes.
    "RAY_worker_niceness": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",  # they serve a dashboard that does not run; MLflow has the metrics
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "1",  # until Ray Train notices the workers' end; 2 by default
}

_START_TRIES = 3
_SOCKET_BYTES = len("/session_2026-12-31_23-59-59_123456_4194304/sockets/plasma_store.1")
_MOST_SOCKET_BYTES = 107


def prepare_environment(own: bool, dashboard: bool) -> None:
    """Set Ray's environment variables, except those that the user has set.

    With `own`, for a Ray that the run starts, also set the limits of its start and restrict access to it. Only with
    `dashboard`, Ray Train keeps records for its dashboard tab: they are kept by an actor, which takes a process.
    """
    tracking = {"RAY_TRAIN_ENABLE_STATE_TRACKING": str(int(dashboard))}
    for name, value in (_ENVIRONMENT | tracking | (LIMITS if own else {})).items():
        os.environ.setdefault(name, value)
    if own:
        _keep_to_ourselves()


def _keep_to_ourselves() -> None:
    """Restrict the cluster that is about to start to the loopback address and to clients with this run's token.

    Ray reads these variables when it is imported. Ray may be imported already, so a hook sets the values that Ray
    derives from the variables as well.
    """
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # "0": Ray uses the loopback address
    with_token = "RAY_AUTH_MODE" not in os.environ
    if with_token and "ray" in sys.modules and not patches.active():
        # This process would not send the token that Ray's other processes require.
        os.environ["RAY_AUTH_MODE"] = "disabled"
        with_token = False
        log.warning(
            "Ray was imported before, and hooks into Ray are off: other users of this machine can use the Ray of this "
            "run. Set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN in the environment to prevent this."
        )
    if with_token:  # a token created by Ray would be kept in the home directory
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    patches.restrict_imported_ray(with_token)


def sessions_folder() -> Path:
    """Folder in which Ray keeps the sessions (logs, sockets) of the runs that this user starts.

    Ray lets every user of the machine read and write its folders, sockets included. So the sessions lie inside a
    folder that only this user may enter; see :func:`_make_private`. The path of a socket has at most 107 bytes, of
    which Ray's own part takes 66; where RAY_TMPDIR or TMPDIR is too long for that, the sessions lie under /tmp.
    """
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    private = f"ray-evergreen-{os.geteuid()}"
    if len(os.fsencode(f"{folder}/{private}/ray")) + _SOCKET_BYTES > _MOST_SOCKET_BYTES:
        folder = "/tmp"
    return Path(folder).absolute() / private / "ray"


def _make_private(folder: Path) -> None:
    """Create a folder that only this user may enter, or restrict this user's existing folder.

    Raises :class:`ResourceError` when the path is a link, a file, or a folder of another user.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise ResourceError(
            f"{folder}: a link, a file, or a folder of another user, who could read what Ray keeps there. Remove it, "
            "or set RAY_TMPDIR to a folder of yours with a short path."
        )
    folder.chmod(0o700)


def start_own(options: RaySettings) -> None:
    """Start a local Ray and connect to it, with up to `_START_TRIES` tries.

    Raises :class:`SettingError` when `RAY_ADDRESS` names another cluster, :class:`ResourceError` when the folder of
    the sessions is not this user's, and :class:`TransientError` when Ray does not start.
    """
    import ray

    if elsewhere := os.environ.get("RAY_ADDRESS"):
        raise SettingError(
            f"RAY_ADDRESS is {elsewhere}, but ray.address is not set. Set ray.address to it to compute there, or unset "
            "RAY_ADDRESS to compute on this machine."
        )
    _make_private(sessions_folder().parent)
    cpus = options.num_cpus or available_cpus()
    log.info("starting Ray on this machine with %d CPUs", cpus)
    for left in reversed(range(_START_TRIES)):
        try:
            _start_here(options, cpus)
            return
        except Exception as error:  # Ray raises plain Exceptions
            ray.shutdown()
            if not left:
                raise TransientError(
                    f"Ray did not start on this machine ({error}); see `evergreen doctor --deep`"
                ) from error
            tries = "1 try" if left == 1 else f"{left} tries"
            log.warning("Ray did not start (%s); %s left", str(error).partition("\n")[0], tries)


def _start_here(options: RaySettings, cpus: int) -> None:
    import ray

    ports = agent_ports()
    with (
        _libraries_loading(),
        waited_for_while_alive(ports),
        patches.start_parameters(
            **{name: port for name, port in ports.items() if name != "metrics_export_port"}
        ),
        nullcontext() if options.dashboard else patches.without_unneeded_processes(),
    ):
        ray.init(
            address="local",  # else Ray would connect to any cluster that runs on this machine
            num_cpus=cpus,
            include_dashboard=options.dashboard,
            object_store_memory=options.object_store_mb * 2**20 if options.object_store_mb else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
            _temp_dir=str(sessions_folder()),
            _metrics_export_port=ports["metrics_export_port"],
        )


@contextmanager
def _libraries_loading() -> Iterator[None]:
    """Import the parts of Ray that a run needs next, while the block waits 3 s for the agents of Ray's node."""
    loading = threading.Thread(target=_load_libraries, name="evergreen-ray-libraries", daemon=True)
    loading.start()
    try:
        yield
    finally:
        loading.join()


def _load_libraries() -> None:
    with suppress(Exception):  # the code that needs a missing module imports it again and reports the error
        importlib.import_module("ray.data")
        importlib.import_module("ray.train")
