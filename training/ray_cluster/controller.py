"""Runs Ray Train's controller in a process that is started while data are prepared and reused by the next attempt.

Ray Train starts an actor for the controller of each training; its imports would add 3 s to each start and recovery.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from training.ray_cluster.capacity import check_accelerator
from training.ray_cluster.cluster import connection, head_is_gone, ray_cluster
from training.settings.schema import Settings
from training.storage.files import append_line

_ready: list[tuple[object, Any]] = []  # idle hosts, each with its connection to Ray
_ANSWER_TIMEOUT_S = 60.0


class TrainControllerHost:
    """Ray actor that runs Ray Train's controllers, one after the other."""

    def __init__(self) -> None:
        import ray.train.v2._internal.execution.controller
        import ray.train.v2.api.data_parallel_trainer  # noqa: F401

    async def answer(self) -> bool:
        """Answer a liveness check."""
        return True

    async def run(self, reserved: Path, start_timeout_s: float, own_ray: bool, given: dict[str, Any]) -> Any:
        """Run a controller with the arguments `given` and return Ray Train's result.

        Its workers have `start_timeout_s` seconds to start. With `own_ray`, the workers inherit Ray's environment.
        The ids of the placement groups that the controller reserves for the workers are appended to the file
        `reserved`: Ray does not release them when this process dies, or when workers die during the rendezvous.
        """
        from ray.train.v2._internal.execution.controller import TrainController

        os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(start_timeout_s)
        given["callbacks"].insert(0, _noting(reserved))  # before the callback of the rendezvous
        _without_synchronization()
        controller = TrainController(**given)
        if own_ray:
            controller.worker_group_cls = _inheriting()
        await controller.run()
        return controller.get_result()


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
    """Start a :class:`TrainControllerHost` without waiting for it, unless this connection to Ray has an idle host."""
    if not any(where is connection() for where, _ in _ready):
        _ready[:] = [(connection(), _new_host(own_ray))]


@contextmanager
def controller_host(own_ray: bool) -> Iterator[Any]:
    """Yield a :class:`TrainControllerHost` for one training; kept for the next training if the block succeeds."""
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
        from ray.train.v2._internal.constants import get_env_vars_to_propagate

        environment["env_vars"] = get_env_vars_to_propagate()
    here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
    actor = ray.remote(num_cpus=0, label_selector=here, runtime_env=environment)(TrainControllerHost)
    return actor.remote()


def _noting(reserved: Path) -> Any:
    from ray.train.v2._internal.execution.callback import WorkerGroupCallback

    class Reserved(WorkerGroupCallback):
        def after_worker_group_start(self, worker_group: Any) -> None:
            handle = worker_group.get_worker_group_state().placement_group_handle
            append_line(reserved, handle.placement_group.id.hex())

    return Reserved()


def _inheriting() -> Any:
    """Ray's worker group without a runtime environment: with it, Ray would start each worker by another process."""
    from ray.train.v2._internal.execution.worker_group import WorkerGroup

    class Group(WorkerGroup):
        @staticmethod
        def _get_worker_runtime_env(custom_runtime_env: Any) -> Any:  # noqa: ARG004 - Ray names it
            return {}

    return Group


class _Nobody:
    """No-op replacement for Ray Train's SynchronizationActor: our workers never call `ray.train.report`."""

    @classmethod
    def options(cls, **_: Any) -> "type[_Nobody]":
        return cls

    @classmethod
    def remote(cls, **_: Any) -> "_Nobody":
        return cls()


def _without_synchronization() -> None:
    """Make Ray Train in this process start no SynchronizationActor."""
    from ray.train.v2._internal.execution.worker_group import state, worker_group

    starting: Any = worker_group
    ending: Any = state
    starting.SynchronizationActor, ending._shutdown_sync_actor = _Nobody, lambda _: None
