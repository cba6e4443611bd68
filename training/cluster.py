"""The Ray cluster of a run: found or started, brought back when it died, and ended with the run that started it."""

import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import psutil

from training.errors import EvergreenError, SettingError, TransientError
from training.room import available_cpus
from training.settings import RaySettings, Settings

log = logging.getLogger("evergreen.cluster")

# Set before the first import of Ray; a user's own values win.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # `uv run` would rebuild the environment on each worker
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "0",
    # A process more beside the workers; training.preemption hears of a node's end by itself.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0",  # which Ray Train's controller does
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # workers stay in the folder where the command was given
    "RAY_TRAIN_METRICS_ENABLED": "0",  # for a dashboard that is not there; MLflow has the metrics
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "1",  # until it is noticed that the workers have ended; 2 by default
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "120",
}

_ahead: list[Settings] = []  # of a Ray that runs and that nobody uses yet

_START_TRIES = 3
_ANSWER_TIMEOUT_S = 5.0
_PING_TIMEOUT_S = 60.0


@contextmanager
def ray_cluster(settings: Settings) -> Iterator[None]:
    """A connection to Ray for the block. A cluster that this call started ends with it; one it found stays.

    Raises :class:`TransientError` when `ray.address` does not answer, and :class:`SettingError` when it can't be meant.
    """
    if _ahead:
        _ahead.clear()
    elif not _prepared(settings):
        yield
        return
    else:
        _start(settings)
    import ray

    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def ray_ahead(settings: Settings) -> Iterator[None]:
    """Start Ray while there is time; the first :func:`ray_cluster` of the block takes it over.

    One that can't be started is left to :func:`ray_cluster`, which says why.
    """
    try:
        if settings.scaling.num_workers and not settings.ray.address and _prepared(settings):
            _start(settings)
            _ahead.append(settings)
    except EvergreenError as error:
        log.debug("Ray was not started ahead (%s)", error)
    try:
        yield
    finally:
        if _ahead:
            _ahead.clear()
            import ray

            ray.shutdown()


def _prepared(settings: Settings) -> bool:
    """Set the environment up for Ray; returns whether this process has none yet."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if not settings.ray.address:
        _keep_to_ourselves()
    import ray

    return not ray.is_initialized()


def _keep_to_ourselves() -> None:
    """Let the cluster that is about to start listen to this machine alone, and to who has this run's token.

    Ray reads these variables at its import, which may lie behind us: what it made of them is set as well.
    """
    os.environ.setdefault(
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0"
    )  # "0": its own address is the loopback one
    with_token = "RAY_AUTH_MODE" not in os.environ
    if with_token:  # Ray's own would be kept in the home directory
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    from ray._private import ray_constants
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined] # compiled, without stubs

    ray_constants.ENABLE_RAY_CLUSTER = os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] != "0"
    if with_token:
        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Leave SIGTERM to this process's handler while Ray starts.

    Ray sets one of its own in Python, which ends the process with status 15 and no word to Prefect, and another in C++
    once it is connected, which aborts the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    import ray
    from ray._private import utils

    before = signal.getsignal(signal.SIGTERM)
    core: Any = ray._raylet
    whole, set_handler = core.CoreWorker, utils.set_sigterm_handler

    def connected(*given: Any) -> Any:
        made = whole(*given)
        signal.signal(signal.SIGTERM, before)
        return made

    core.CoreWorker, utils.set_sigterm_handler = connected, lambda _: None
    try:
        yield
    finally:
        core.CoreWorker, utils.set_sigterm_handler = whole, set_handler
        signal.signal(signal.SIGTERM, before)


@_sigterm_kept()
def _start(settings: Settings) -> None:
    if settings.ray.address:
        _connect(settings.ray.address)
    else:
        _start_own(settings.ray)
    import ray.data

    # Its import sets levels of its own; an execution plan a pipeline is nothing that a user can act on.
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False


def _connect(address: str) -> None:
    import ray
    from ray.exceptions import AuthenticationError

    check_answers(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except AuthenticationError as error:
        raise SettingError(
            f"ray.address: RAY_AUTH_MODE is token, and there is none for {address}. Name the file with the cluster's "
            "token in RAY_AUTH_TOKEN_PATH, or put it at ~/.ray/auth_token."
        ) from error
    except ConnectionError as error:
        mode = os.environ.get("RAY_AUTH_MODE", "not set, so no token was offered")
        raise TransientError(
            f"ray.address: {address} answers, but does not let this process in. Either no Ray cluster listens there, "
            f"or it wants another token (RAY_AUTH_MODE is {mode}; RAY_AUTH_TOKEN_PATH names its file) ({error})"
        ) from error


def _start_own(options: RaySettings) -> None:
    import ray

    if elsewhere := os.environ.get("RAY_ADDRESS"):
        raise SettingError(
            f"RAY_ADDRESS is {elsewhere}, but ray.address is not set. Set ray.address to it to compute there, or unset "
            "RAY_ADDRESS to compute on this machine."
        )
    cpus = options.num_cpus or available_cpus()
    log.info("starting Ray on this machine with %d CPUs", cpus)
    for left in reversed(range(_START_TRIES)):
        try:
            _start_here(options, cpus)
            return
        except Exception as error:  # Ray says with a plain Exception that a node took over 30 s to start
            ray.shutdown()
            if not left:
                raise TransientError(
                    f"Ray did not start on this machine ({error}); see `evergreen doctor --deep`"
                ) from error
            log.warning("Ray did not start (%s); %d tries left", str(error).partition("\n")[0], left)


def check_answers(address: str) -> None:
    """Refuse an address where nobody listens; Ray itself would try for minutes and then not name it.

    Raises :class:`SettingError` for what is no address and :class:`TransientError` when nobody answers.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise SettingError(f"ray.address: {address!r} is not host:port, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_TIMEOUT_S).close()
    except OSError as error:
        raise TransientError(f"ray.address: no Ray cluster answers at {address} ({error})") from error


def _start_here(options: RaySettings, cpus: int) -> None:
    import ray

    with _in_a_group_of_their_own(), nullcontext() if options.dashboard else _without_onlookers():
        ray.init(
            address="local",  # else Ray would connect to whatever cluster runs on this machine
            num_cpus=cpus,
            include_dashboard=options.dashboard,
            object_store_memory=options.object_store_mb * 2**20 if options.object_store_mb else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )


@contextmanager
def _in_a_group_of_their_own() -> Iterator[None]:
    """Keep the processes that Ray starts in the block out of this process's group.

    Prefect cancels a run with SIGTERM to its whole group: Ray would die before the workers saved a checkpoint. The
    kernel ends them with this process all the same.
    """
    from ray._private import services

    whole = services.ConsolePopen
    services.ConsolePopen = partial(whole, process_group=0)  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        services.ConsolePopen = whole  # type: ignore[misc]


@contextmanager
def _without_onlookers() -> Iterator[None]:
    """Let Ray start none of three processes in the block that a run on one machine has no use for.

    Those are the autoscaler's monitor, the log monitor, which sends what workers print to a driver that wants it, and
    the dashboard's server: without a dashboard, Ray has it collect usage statistics, and waits until it is up.
    """
    from ray._private import parameter
    from ray._private.node import Node

    params, start = parameter.RayParams, Node.start_api_server
    parameter.RayParams = partial(params, no_monitor=True, include_log_monitor=False)  # type: ignore[misc,assignment,arg-type]
    Node.start_api_server = lambda *_, **__: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        parameter.RayParams, Node.start_api_server = params, start  # type: ignore[misc,method-assign]


def revive(settings: Settings) -> None:
    """Ray as usable as at the start: a cluster of this run that lost its head or its node is replaced.

    Raises :class:`TransientError` when `ray.address` does not answer any more.
    """
    import ray

    if _runs("gcs_server") and _runs(
        "raylet"
    ):  # asking it for a task would take another second of each recovery
        return
    if not _own_processes() and _answers():
        return
    if settings.ray.address:
        raise TransientError(f"ray.address: the cluster at {settings.ray.address} does not answer any more")
    log.warning("Ray does not answer; starting it anew")
    left = _children_of_raylet()
    ray.shutdown()
    for process in left:  # agents whose head is dead may wait for its answer for a while
        with suppress(psutil.Error):
            process.kill()
    _start(settings)


def _children_of_raylet() -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for one in _own_processes().get("raylet", []):
        with suppress(psutil.Error):
            found += psutil.Process(one.process.pid).children(recursive=True)
    return found


def connection() -> object:
    """What stands for this process's connection to Ray; another one after Ray was started anew."""
    from ray._private.worker import _global_node

    return _global_node


def head_is_gone() -> bool:
    """Whether the GCS of this run's own cluster died. Ray notices after a minute, and then ends this process."""
    return bool(_own_processes()) and not _runs("gcs_server")


def _runs(kind: str) -> bool:
    """Whether this process has started a process of Ray's of this kind that is still there."""
    started = _own_processes().get(kind, [])
    return bool(started) and all(one.process.poll() is None for one in started)


def _own_processes() -> dict[str, list[Any]]:
    """Ray's processes that this process started; none on a cluster that it found."""
    from ray._private.worker import _global_node

    return _global_node.all_processes if _global_node is not None else {}


def _answers() -> bool:
    """Whether a task still runs."""
    import ray

    def ping() -> None:
        return None

    try:
        ray.get(ray.remote(num_cpus=0, max_retries=0)(ping).remote(), timeout=_PING_TIMEOUT_S)
    except Exception as error:
        log.info("Ray does not run a task any more (%s)", type(error).__name__)
        return False
    return True
