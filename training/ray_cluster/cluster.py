"""The Ray cluster of a run: connects to a cluster or starts a local one, restarts a dead one, stops it at the end."""

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

import psutil

from training.errors import EvergreenError, SettingError, TransientError
from training.ray_cluster.local_ray import prepare_environment, start_own
from training.ray_cluster.patches import sigterm_kept
from training.ray_cluster.working_directory import without_other_packages
from training.settings.schema import Settings

log = logging.getLogger("evergreen.cluster")

_ahead: list[Settings] = []  # settings of a Ray that was started ahead and is not used yet
# Head (gcs_server) and node (raylet) of a Ray that this process started, by name.
_own: dict[str, psutil.Process] = {}

_ANSWER_TIMEOUT_S = 5.0
# Ray ends this process when its head has been gone for 60 seconds. Less, so that a run ends with a status of its own.
_HEAD_AWAY_S, _HEAD_EVERY_S, _HEAD_TIMEOUT_S = 30.0, 2.0, 2.0
_HEAD_BACK_S = 20.0  # for a head that is started again
_PING_TIMEOUT_S = 60.0


@contextmanager
def ray_cluster(settings: Settings) -> Iterator[None]:
    """Connect the block to the cluster at `ray.address`, or to a local Ray that is started for the block.

    A local Ray ends with the block. A cluster at `ray.address`, and a connection that this process already had, stay.
    Raises :class:`TransientError` when `ray.address` does not answer or a local Ray does not start,
    :class:`SettingError` when `ray.address` is not host:port, its token is missing or RAY_ADDRESS contradicts it, and
    :class:`training.errors.ResourceError` when the folder of Ray's sessions is not this user's.
    """
    if _ahead:
        _ahead.clear()
        restart_dead_ray(settings)  # nothing notices the death of an idle Ray
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
        _own.clear()


@contextmanager
def ray_ahead(settings: Settings) -> Iterator[None]:
    """Start a local Ray early; the first :func:`ray_cluster` of the block takes it over.

    Does nothing for a run without workers or with `ray.address`. If the start fails, :func:`ray_cluster` tries again
    and raises the reason.
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
            _own.clear()


def _prepared(settings: Settings) -> bool:
    """Set Ray's environment variables; returns whether this process still lacks a connection to Ray."""
    prepare_environment(own=not settings.ray.address, dashboard=settings.ray.dashboard)
    import ray

    return not ray.is_initialized()


@sigterm_kept()
def _start(settings: Settings) -> None:
    _own.clear()
    with without_other_packages():
        if settings.ray.address:
            _connect(settings.ray.address)
        else:
            start_own(settings.ray)
            _own.update(_started_now())
    import ray.data

    # The import sets log levels; at those, each pipeline logs an execution plan, which no user can act on.
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
    except RuntimeError as error:
        if "version mismatch" not in str(error).lower():
            raise
        raise SettingError(
            f"ray.address: the cluster at {address} has other versions of Ray or Python than this process ({error}). "
            "Install the same versions, to the patch version."
        ) from error
    except ConnectionError as error:
        mode = os.environ.get("RAY_AUTH_MODE", "not set, so no token was offered")
        raise TransientError(
            f"ray.address: {address} answers, but does not let this process in. Either no Ray cluster listens there, "
            f"or it wants another token (RAY_AUTH_MODE is {mode}; RAY_AUTH_TOKEN_PATH names its file) ({error})"
        ) from error


def check_answers(address: str, timeout_s: float = _ANSWER_TIMEOUT_S) -> None:
    """Check that a server listens at `address`; Ray itself would try for minutes and then not name the address.

    Raises :class:`SettingError` when `address` is not host:port, and :class:`TransientError` when no server answers.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise SettingError(f"ray.address: {address!r} is not host:port, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host, int(port)), timeout=timeout_s).close()
    except OSError as error:
        raise TransientError(f"ray.address: no Ray cluster answers at {address} ({error})") from error


def restart_dead_ray(settings: Settings) -> None:
    """Make Ray usable again: a cluster of this run that lost its head or its node is restarted.

    Raises :class:`TransientError` when the cluster at `ray.address` no longer answers, or Ray does not restart.
    """
    import ray

    if _runs("gcs_server") and _runs("raylet") and _has_node():
        return  # a test task would add another second to each recovery
    if settings.ray.address:
        _wait_for_head(settings.ray.address)  # a call of Ray would block until Ray ends this process
    if not _own and _answers():
        return
    if settings.ray.address:
        raise TransientError(
            f"ray.address: the cluster at {settings.ray.address} does not answer any more. Start the cluster, and run "
            "the same command again."
        )
    log.warning("Ray does not answer; starting it again")
    left = _children_of_raylet()
    ray.shutdown()
    for process in left:  # agents may wait for an answer of the dead head for a while
        with suppress(psutil.Error):
            process.kill()
    _start(settings)


def _wait_for_head(address: str) -> None:
    """Raises :class:`TransientError` when no server listens at `address` within 20 seconds."""
    deadline = time.monotonic() + _HEAD_BACK_S
    while True:
        try:
            return check_answers(address, _HEAD_TIMEOUT_S)
        except TransientError:
            if time.monotonic() > deadline:
                raise
        time.sleep(1)


def _children_of_raylet() -> list[psutil.Process]:
    with suppress(psutil.Error, KeyError):
        return _own["raylet"].children(recursive=True)
    return []


def connection() -> object:
    """A value that identifies this process's connection to Ray; after a restart of Ray it is another value."""
    import ray

    if not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return context.gcs_address, context.get_job_id()


def head_is_gone() -> bool:
    """Whether the head (GCS) of this run's own cluster died. Ray notices after a minute, then ends this process."""
    return bool(_own) and not _runs("gcs_server")


def check_node() -> None:
    """Raises :class:`RayLostError` when the node of this run's own cluster died: nothing starts it again."""
    if _own and not _runs("raylet"):
        raise RayLostError("Ray's node process (raylet) died. Run the same command again: it continues.")


class RayLostError(TransientError):
    """A process of Ray died without which no task runs and no trial ends."""


class HeadLostError(RayLostError):
    """The head (GCS) of the cluster at `ray.address` does not answer any more; this process can't use it again."""


class HeadWatch:
    """Watches the head (GCS) of a run's cluster in the block: Ray ends this process a minute after the head's death.

    `address` is `ray.address`, or None for a local Ray. Another thread asks the head, so that a slow network or name
    server does not hold up the caller.
    """

    def __init__(self, address: str | None):
        self._address = address
        self._away_since: float | None = None  # by time.monotonic()
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        if self._address is not None:
            threading.Thread(
                target=self._ask, args=(self._address,), name="evergreen-head", daemon=True
            ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def check(self) -> None:
        """Raises :class:`RayLostError` for the death of a local head.

        Raises :class:`HeadLostError` when the head at `ray.address` has not answered for 30 seconds.
        """
        if head_is_gone():
            raise RayLostError("Ray's head process (gcs_server) died.")
        since = self._away_since
        if since is not None and (away := time.monotonic() - since) > _HEAD_AWAY_S:
            raise HeadLostError(
                f"ray.address: the head at {self._address} has not answered for {away:.0f} s. Start the head, and run "
                "the same command again."
            )

    def _ask(self, address: str) -> None:
        while not self._ended.wait(_HEAD_EVERY_S):
            try:
                check_answers(address, _HEAD_TIMEOUT_S)
                self._away_since = None
            except TransientError:
                self._away_since = self._away_since or time.monotonic()


def _runs(name: str) -> bool:
    """Whether this process started Ray's process `name`, which still runs."""
    with suppress(psutil.NoSuchProcess, KeyError):
        return _own[name].is_running() and _own[name].status() != psutil.STATUS_ZOMBIE
    return False


def _has_node() -> bool:
    """Whether Ray's head considers a node alive; the head checks nodes every few seconds.

    Meant for a cluster of this run alone, whose only node is this machine.
    """
    import ray

    return any(node["Alive"] for node in ray.nodes())


def _started_now() -> dict[str, psutil.Process]:
    """Child processes of this process that are Ray's head and node, by name."""
    children = {child.name(): child for child in psutil.Process().children()}
    return {name: children[name] for name in ("gcs_server", "raylet") if name in children}


def _answers() -> bool:
    """Whether Ray still executes a task within `_PING_TIMEOUT_S` seconds."""
    import ray

    def ping() -> None:
        return None

    try:
        ray.get(ray.remote(num_cpus=0, max_retries=0)(ping).remote(), timeout=_PING_TIMEOUT_S)
    except Exception as error:
        log.info("Ray does not run a task any more (%s)", type(error).__name__)
        return False
    return True
