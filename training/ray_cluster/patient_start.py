"""Waits for the start of Ray's processes on a busy machine while they live, instead of restarting them after 30 s.

Ray gives its head and its node 30 s each to start, and then ends both. On a machine whose processors are busy with
other work, both take longer, and a restart would take as long again. So the wait continues while the processes live,
up to :data:`START_LIMIT_S`. In addition, Ray's raylet ends itself when its two agents have not reported their ports
within 15 s, a limit that can't be set. The raylet does not wait for ports that it gets from :func:`agent_ports`.
"""

import logging
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from training.errors import TransientError
from training.ray_cluster import patches

log = logging.getLogger("evergreen.cluster")

START_LIMIT_S = 300.0
_SAY_S = 30.0
_LOOK_S = 5  # between two checks that Ray's processes live; Ray takes whole seconds

# Read by Ray's processes and by Ray in this process; values that the user has set take precedence.
LIMITS = {
    "RAY_raylet_start_wait_time_s": str(_LOOK_S),  # one wait for the node; the wait is repeated
    "RAY_agent_register_timeout_ms": str(int(START_LIMIT_S * 1000)),  # the raylet's wait for its two agents
}


def agent_ports() -> dict[str, int]:
    """Free ports for the raylet's agents, by name of Ray's parameter.

    Should another process take a port before the agents listen, the next try to start Ray uses other ports.
    """
    names = (
        "metrics_agent_port",
        "dashboard_agent_listen_port",
        "runtime_env_agent_port",
        "metrics_export_port",
    )
    with ExitStack() as held:  # all sockets are open at the same time, so that the ports differ
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        return {name: listener.getsockname()[1] for name, listener in zip(names, sockets, strict=True)}


@contextmanager
def waited_for_while_alive(ports: dict[str, int]) -> Iterator[None]:
    """Wait for the processes that Ray starts in the block while they live, each in a process group of its own.

    Prefect cancels a run with SIGTERM to the run's whole process group: in that group, Ray would die before the
    workers saved a checkpoint. The kernel still ends Ray's processes when this process ends. Raises
    :class:`TransientError` when one of the processes ends, or does not start within :data:`START_LIMIT_S`.
    """
    wait = _Wait()
    # Ray passes the other `ports` to the raylet.
    arguments = [f"--dashboard_agent_listen_port={ports['dashboard_agent_listen_port']}"]
    with patches.started_processes(arguments, wait.processes.append, wait.until, _LOOK_S):
        yield


class _Wait:
    """Repeats a wait for Ray's processes while all of them live, up to :data:`START_LIMIT_S`."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self._began = self._logged_at = time.monotonic()

    def until(self, there: Callable[[], Any]) -> Any:
        """Call `there` until it raises no RuntimeError (Ray's timeout), and return its result.

        Raises :class:`TransientError` when a process has ended or the time is over.
        """
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
        if now - self._logged_at >= _SAY_S:
            self._logged_at = now
            log.warning(
                "Ray has been starting for %.0f s, as this machine is busy; waiting up to %.0f s for it",
                taken,
                START_LIMIT_S,
            )
