"""All uses of Ray's internal modules, each with what it gains. Without them, Evergreen uses Ray's public API alone.

The hooks are active for the Ray versions in :data:`TESTED`. The environment variable EVERGREEN_RAY_HOOKS=0 turns them
off, and =1 turns them on for any version. docs/ray-hooks.md lists each hook with the seconds that were measured.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.termination import no_repeated_sigterm

if TYPE_CHECKING:
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

TESTED = ("2.60.0",)
VARIABLE = "EVERGREEN_RAY_HOOKS"


def active() -> bool:
    """Whether the hooks are used: for a tested version of Ray, unless EVERGREEN_RAY_HOOKS says otherwise."""
    from importlib.metadata import version

    chosen = os.environ.get(VARIABLE, "")
    return chosen == "1" if chosen in ("0", "1") else version("ray") in TESTED


def restrict_imported_ray(with_token: bool) -> None:
    """Apply the variables that restrict access to a cluster to a Ray that this process has imported already.

    Without the hook, they have an effect only when they are set before the first import of Ray.
    """
    if not active():
        return
    from ray._private import ray_constants
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined] # compiled, without stubs

    ray_constants.ENABLE_RAY_CLUSTER = os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] != "0"
    if with_token:
        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def sigterm_kept() -> Iterator[None]:
    """Keep this process's SIGTERM handler while Ray starts in the block.

    Ray installs a handler in Python, which ends the process with status 15 without notifying Prefect, and, once
    connected, a handler in C++, which aborts the process. The hook prevents that a SIGTERM during the start meets one
    of them; without the hook, the handler is restored after the start.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        with _without_ray_handlers(before) if active() else nullcontext():
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _without_ray_handlers(before: Any) -> Iterator[None]:
    """In the block, Ray's start installs no SIGTERM handler: once Ray is connected, `before` handles SIGTERM again."""
    import ray
    from ray._private import utils

    core: Any = ray._raylet
    core_worker, set_handler = core.CoreWorker, utils.set_sigterm_handler

    def connected(*given: Any) -> Any:
        with no_repeated_sigterm():
            made = core_worker(*given)
            signal.signal(signal.SIGTERM, before)
        return made

    core.CoreWorker, utils.set_sigterm_handler = connected, lambda _: None
    try:
        yield
    finally:
        core.CoreWorker, utils.set_sigterm_handler = core_worker, set_handler


@contextmanager
def start_parameters(**more: Any) -> Iterator[None]:
    """Give a Ray that is started in the block the parameters `more`, for which `ray.init` has no argument."""
    if not active():
        yield
        return
    from ray._private import parameter

    params = parameter.RayParams
    parameter.RayParams = partial(params, **more)  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        parameter.RayParams = params  # type: ignore[misc]


@contextmanager
def without_unneeded_processes() -> Iterator[None]:
    """Make Ray start in the block without three processes that a run on one machine does not need.

    They are the autoscaler's monitor; the log monitor, which sends the workers' output to drivers that want it; and
    the dashboard's server, which Ray starts even without a dashboard, to collect usage statistics, and waits for.
    Measured: `ray.init` takes 4.3 to 5.7 s instead of 7 to 8 s.
    """
    if not active():
        yield
        return
    from ray._private.node import Node

    start = Node.start_api_server
    Node.start_api_server = lambda *_, **__: None  # type: ignore[method-assign]
    try:
        with start_parameters(no_monitor=True, include_log_monitor=False):
            yield
    finally:
        Node.start_api_server = start  # type: ignore[method-assign]


@contextmanager
def started_processes(
    raylet_arguments: list[str],
    started: Callable[[Any], None],
    wait: Callable[[Callable[[], Any]], Any],
    look_s: int,
) -> Iterator[None]:
    """Start each of Ray's processes in the block in a process group of its own, and replace Ray's waits for them.

    `started` gets each process. Ray's waits for the head's port and for the node take `look_s` seconds each and are
    passed to `wait`, which calls them. The raylet gets the additional `raylet_arguments`.
    """
    if not active():
        yield
        return
    from ray._private import node, services

    ray_node: Any = node
    ray_services: Any = services
    start, find, port = ray_services.ConsolePopen, ray_services.get_node, ray_node.wait_for_persisted_port

    def start_process(command: list[str], **options: Any) -> Any:
        if Path(command[0]).name == "raylet":
            command = [*command, *raylet_arguments]
        process = start(command, **options | {"process_group": 0})
        started(process)
        return process

    def port_of(*given: Any, **options: Any) -> Any:
        return wait(lambda: port(*given, **options | {"timeout_ms": look_s * 1000}))

    ray_services.ConsolePopen, ray_node.wait_for_persisted_port = start_process, port_of
    ray_services.get_node = lambda *given: wait(lambda: find(*given))
    try:
        yield
    finally:
        ray_services.ConsolePopen, ray_services.get_node = start, find
        ray_node.wait_for_persisted_port = port


def draining_nodes() -> list[str]:
    """Ids of the nodes that are about to be taken away. Ray has no public API for a driver: [] without the hook."""
    if not active():
        return []
    from ray._private.state import state

    return list(state.get_draining_nodes())


def propagated_environment() -> dict[str, str]:
    """Ray Train's environment variables, for an actor that is to run its controller on another cluster."""
    from ray.train.v2._internal.constants import get_env_vars_to_propagate

    environment: dict[str, str] = get_env_vars_to_propagate()
    return environment


class TrainControllerHost:
    """Ray actor that runs Ray Train's controllers, one after the other.

    Ray Train starts an actor for the controller of each training; its imports would add 3 s to each start and
    recovery.
    """

    def __init__(self) -> None:
        import ray.train.v2._internal.execution.controller
        import ray.train.v2.api.data_parallel_trainer  # noqa: F401

    async def answer(self) -> bool:
        """Answer a liveness check."""
        return True

    async def run(self, start_timeout_s: float, own_ray: bool, given: dict[str, Any]) -> Any:
        """Run a controller with the arguments `given` and return Ray Train's result.

        Its workers have `start_timeout_s` seconds to start. With `own_ray`, the workers inherit Ray's environment.
        """
        from ray.train.v2._internal.execution.controller import TrainController

        os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(start_timeout_s)
        _disable_synchronization_actor()
        controller = TrainController(**given)
        if own_ray:
            controller.worker_group_cls = _inheriting_worker_group()
        await controller.run()
        return controller.get_result()


def hooked_trainer(
    run_controller: Callable[[dict[str, Any]], Any], with_datasets: bool, asks_for_nodes: bool
) -> "type[DataParallelTrainer]":
    """Ray's trainer class without actors that each add 2 to 3 s to a start.

    `run_controller` runs the controller with its arguments, in a process that is kept. Left out are the actor that
    manages datasets, when there are no datasets; the actor that requests nodes from an autoscaler, which a local Ray
    lacks; and the actor that releases the workers' placement group when the controller dies: that actor never ends.
    """
    from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
    from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
    from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    left_out = (
        PlacementGroupCleanerCallback if with_datasets else (PlacementGroupCleanerCallback, DatasetsCallback)
    )

    class FixedWorkers(FixedScalingPolicy):
        def _send_resource_request(self) -> None:
            pass

        _maybe_send_resource_request = _cancel_resource_request = _send_resource_request

    class Trainer(DataParallelTrainer):
        def _initialize_and_run_controller(self, **given: Any) -> Any:
            if not asks_for_nodes:
                # Ray's stubs describe Train V1.
                given["scaling_policy"] = FixedWorkers(self.scaling_config)  # type: ignore[arg-type]
            return run_controller(given)

        def _create_default_callbacks(self) -> list[Any]:
            callbacks = super()._create_default_callbacks()
            return [callback for callback in callbacks if not isinstance(callback, left_out)]

    return Trainer


def _inheriting_worker_group() -> Any:
    """Ray's worker group without a runtime environment: with it, Ray would start each worker by another process."""
    from ray.train.v2._internal.execution.worker_group import WorkerGroup

    class Group(WorkerGroup):
        @staticmethod
        def _get_worker_runtime_env(custom_runtime_env: Any) -> Any:  # noqa: ARG004 - Ray names it
            return {}

    return Group


class _NoSynchronizationActor:
    """No-op replacement for Ray Train's SynchronizationActor: our workers never call `ray.train.report`."""

    @classmethod
    def options(cls, **_: Any) -> "type[_NoSynchronizationActor]":
        return cls

    @classmethod
    def remote(cls, **_: Any) -> "_NoSynchronizationActor":
        return cls()


def _disable_synchronization_actor() -> None:
    """Make Ray Train in this process start no SynchronizationActor. Measured: a start takes 8.9 s instead of 11.5 s."""
    from ray.train.v2._internal.execution.worker_group import state, worker_group

    starting: Any = worker_group
    ending: Any = state
    starting.SynchronizationActor, ending._shutdown_sync_actor = _NoSynchronizationActor, lambda _: None
