"""Ray's processes on a busy machine: waited for as long as they live, instead of begun again after 30 s.

Ray gives its head and its node 30 s each to be there, and then ends both. On a machine whose processors are busy with
other work they take longer, and would take as long the next time. So the wait goes on, while the processes live,
up to :data:`START_LIMIT_S`. And Ray's raylet ends itself when its two agents have not told it their ports within 15 s,
a limit that can't be set; it does not wait for ports that it is given.
"""

import logging
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from training.errors import TransientError

log = logging.getLogger("evergreen.cluster")

START_LIMIT_S = 300.0
_SAY_S = 30.0
_LOOK_S = 5  # between two looks whether Ray's processes live; Ray takes whole seconds

# Read by Ray's processes and by Ray in this one; a user's own values win.
LIMITS = {
    "RAY_raylet_start_wait_time_s": str(_LOOK_S),  # for one of several waits for the node
    "RAY_agent_register_timeout_ms": str(int(START_LIMIT_S * 1000)),  # of the raylet for its two agents
}


def agent_ports() -> dict[str, int]:
    """Free ports for the raylet's agents; should one be taken before they listen, the next start gets others."""
    names = (
        "metrics_agent_port",
        "dashboard_agent_listen_port",
        "runtime_env_agent_port",
        "metrics_export_port",
    )
    with ExitStack() as held:  # all at the same time, so that they differ
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        return {name: one.getsockname()[1] for name, one in zip(names, sockets, strict=True)}


@contextmanager
def waited_for_while_alive(ports: dict[str, int]) -> Iterator[None]:
    """Wait for the processes that Ray starts in the block while they live, and keep them out of this process's group.

    Prefect cancels a run with SIGTERM to its whole group: Ray would die before the workers saved a checkpoint. The
    kernel ends them with this process all the same. Raises :class:`TransientError` when a process ends, or
    :data:`START_LIMIT_S` is over.
    """
    from ray._private import node, services

    ray_node: Any = node
    ray_services: Any = services
    start, find, port = ray_services.ConsolePopen, ray_services.get_node, ray_node.wait_for_persisted_port
    wait = _Wait()

    def started(command: list[str], **options: Any) -> Any:
        if Path(command[0]).name == "raylet":  # which Ray gives all of `ports` but this one
            command = [*command, f"--dashboard_agent_listen_port={ports['dashboard_agent_listen_port']}"]
        wait.processes.append(start(command, **options | {"process_group": 0}))
        return wait.processes[-1]

    def port_of(*given: Any, **options: Any) -> Any:
        return wait.until(lambda: port(*given, **options | {"timeout_ms": _LOOK_S * 1000}))

    ray_services.ConsolePopen, ray_node.wait_for_persisted_port = started, port_of
    ray_services.get_node = lambda *given: wait.until(lambda: find(*given))
    try:
        yield
    finally:
        ray_services.ConsolePopen, ray_services.get_node = start, find
        ray_node.wait_for_persisted_port = port


class _Wait:
    """For something of Ray's processes, while all of them live."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self._began = self._said = time.monotonic()

    def until(self, there: Callable[[], Any]) -> Any:
        """What `there` returns once it does not raise that it waited in vain."""
        while True:
            try:
                return there()
            except RuntimeError as error:
                self._check(error)

    def _check(self, error: RuntimeError) -> None:
        now = time.monotonic()
        taken = now - self._began
        ended = [process.args for process in self.processes if process.poll() is not None]
        if ended or taken > START_LIMIT_S:
            raise TransientError(
                f"Ray is not there after {taken:.0f} s, {len(ended)} of its processes ended"
            ) from error
        if now - self._said >= _SAY_S:
            self._said = now
            log.warning(
                "Ray has been starting for %.0f s, as this machine is busy; waiting up to %.0f s for it",
                taken,
                START_LIMIT_S,
            )
