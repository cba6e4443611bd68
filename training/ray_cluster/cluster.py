"""The Ray cluster of a run: found or started, brought back when it died, and ended with the run that started it."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from training.errors import EvergreenError, SettingError, TransientError
from training.ray_cluster.local_ray import prepare_environment, sigterm_kept, start_own
from training.settings.schema import Settings

log = logging.getLogger("evergreen.cluster")

_ahead: list[Settings] = []  # of a Ray that runs and that nobody uses yet

_ANSWER_TIMEOUT_S = 5.0
_PING_TIMEOUT_S = 60.0


@contextmanager
def ray_cluster(settings: Settings) -> Iterator[None]:
    """A connection to Ray for the block. A cluster that this call started ends with it; one it found stays.

    Raises :class:`TransientError` when `ray.address` does not answer or a Ray of this run's own does not start, and
    :class:`SettingError` when `ray.address` can't be meant.
    """
    if _ahead:
        _ahead.clear()
        restart_dead_ray(settings)  # while nobody used it, nobody would have noticed its end
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
    prepare_environment(own=not settings.ray.address, dashboard=settings.ray.dashboard)
    import ray

    return not ray.is_initialized()


@sigterm_kept()
def _start(settings: Settings) -> None:
    if settings.ray.address:
        _connect(settings.ray.address)
    else:
        start_own(settings.ray)
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


def restart_dead_ray(settings: Settings) -> None:
    """Ray as usable as at the start: a cluster of this run that lost its head or its node is replaced.

    Raises :class:`TransientError` when `ray.address` does not answer any more, or Ray does not start anew.
    """
    import ray

    if _runs("gcs_server") and _runs("raylet") and _has_node():
        return  # asking it for a task would take another second of each recovery
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


def _has_node() -> bool:
    """Whether Ray's head takes this machine's node for alive; it asks it every few seconds."""
    import ray

    return any(node["Alive"] for node in ray.nodes())


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
