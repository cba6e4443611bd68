"""Ray Train's controller, in a process that is kept: loaded while data are prepared, and there for the next attempt.

Ray Train starts an actor a training for it, whose imports would take 3 s of each start, and of each recovery.
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

_ready: list[tuple[object, Any]] = []  # hosts that nobody uses, each with its connection to Ray
_ANSWER_TIMEOUT_S = 60.0


class TrainControllerHost:
    """An actor that runs one controller after the other."""

    def __init__(self) -> None:
        import ray.train.v2._internal.execution.controller
        import ray.train.v2.api.data_parallel_trainer  # noqa: F401

    async def answer(self) -> bool:
        """Whether it is there."""
        return True

    async def run(self, reserved: Path, start_timeout_s: float, own_ray: bool, given: dict[str, Any]) -> Any:
        """Ray Train's result of a controller made of `given`, whose workers have `start_timeout_s` to start.

        What the controller reserves for them is noted in the file `reserved`: when this process dies, or they do while
        they meet, Ray does not give it back.
        """
        from ray.train.v2._internal.execution.controller import TrainController

        os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(start_timeout_s)
        given["callbacks"].insert(0, _noting(reserved))  # before the one in which workers meet
        _without_synchronization()
        controller = TrainController(**given)
        if own_ray:
            controller.worker_group_cls = _inheriting()
        await controller.run()
        return controller.get_result()


@contextmanager
def ray_for(settings: Settings, start_up: AbstractContextManager[None]) -> Iterator[None]:
    """Ray for the block when there are workers to run on it; its start is booked on `start_up`."""
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
    """Let a :class:`TrainControllerHost` start, unless one is there that nobody uses."""
    if not any(where is connection() for where, _ in _ready):
        _ready[:] = [(connection(), _new_host(own_ray))]


@contextmanager
def controller_host(own_ray: bool) -> Iterator[Any]:
    """A :class:`TrainControllerHost` for one training; it is kept when the block comes to its end."""
    import ray

    start_host(own_ray)
    _, host = _ready.pop()
    if not _answers(host):
        host = _new_host(own_ray)
    try:
        yield host
    except BaseException:
        if not head_is_gone():  # else nobody would answer
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
    """A host that is starting."""
    import ray

    # A Ray of our own has inherited the environment, and has a spare process that fits then.
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
    """Ray's group of workers that inherit their environment: given one, each would be started by another process."""
    from ray.train.v2._internal.execution.worker_group import WorkerGroup

    class Group(WorkerGroup):
        @staticmethod
        def _get_worker_runtime_env(custom_runtime_env: Any) -> Any:  # noqa: ARG004 - Ray names it
            return {}

    return Group


class _Nobody:
    """Stands where Ray Train has the actor through which workers meet in `ray.train.report`, which ours never call."""

    @classmethod
    def options(cls, **_: Any) -> "type[_Nobody]":
        return cls

    @classmethod
    def remote(cls, **_: Any) -> "_Nobody":
        return cls()


def _without_synchronization() -> None:
    """Start no such actor from this process."""
    from ray.train.v2._internal.execution.worker_group import state, worker_group

    starting: Any = worker_group
    ending: Any = state
    starting.SynchronizationActor, ending._shutdown_sync_actor = _Nobody, lambda _: None
