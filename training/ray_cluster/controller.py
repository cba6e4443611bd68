"""Keeps a process for Ray Train's controller, started while data are prepared and reused by the next attempt.

Without the hooks of :mod:`training.ray_cluster.patches`, Ray Train starts a process for each controller by itself.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any

from training.ray_cluster import patches
from training.ray_cluster.capacity import check_accelerator
from training.ray_cluster.cluster import connection, head_is_gone, ray_cluster
from training.settings.schema import Settings

_ready: list[tuple[object, Any]] = []  # idle hosts, each with its connection to Ray
_ANSWER_TIMEOUT_S = 60.0


@contextmanager
def ray_for(settings: Settings, start_up: AbstractContextManager[None]) -> Iterator[None]:
    """Connect the block to Ray and start a controller host, unless `scaling.num_workers` is 0.

    `start_up` is a context manager that measures the time of Ray's start. Raises the errors of :func:`ray_cluster`
    and :func:`check_accelerator`.
    """
    if not settings.scaling.num_workers:
        yield
        return
    with ExitStack() as stack:
        with start_up:
            stack.enter_context(ray_cluster(settings))
            check_accelerator(settings.scaling)
            start_host(own_ray=not settings.ray.address)
        yield


def start_host(own_ray: bool) -> None:
    """Start a controller host without waiting for it, unless this connection to Ray has one, or the hooks are off."""
    if patches.active() and not any(where == connection() for where, _ in _ready):
        _ready[:] = [(connection(), _new_host(own_ray))]


@contextmanager
def controller_host(own_ray: bool) -> Iterator[Any]:
    """Yield a controller host for one training; kept for the next training if the block succeeds."""
    import ray

    start_host(own_ray)
    _, host = _ready.pop()
    if not _answers(host):
        host = _new_host(own_ray)
    try:
        yield host
    except BaseException:
        if not head_is_gone():  # without its head, Ray would not answer
            with suppress(Exception):
                ray.kill(host)
        raise
    _ready.append((connection(), host))


def _answers(host: Any) -> bool:
    import ray

    try:
        return bool(ray.get(host.answer.remote(), timeout=_ANSWER_TIMEOUT_S))
    except ray.exceptions.RayError:
        return False


def _new_host(own_ray: bool) -> Any:
    """Create a host on this node; returns the actor's handle while the host is still starting."""
    import ray

    # A local Ray inherited this environment; an actor without its own environment can use Ray's spare process.
    environment: dict[str, Any] = {}
    if not own_ray:
        environment["env_vars"] = patches.propagated_environment()
    here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
    actor = ray.remote(num_cpus=0, label_selector=here, runtime_env=environment)(patches.TrainControllerHost)
    return actor.remote()
