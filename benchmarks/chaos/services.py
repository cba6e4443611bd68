"""Servers of trials: Prefect, MLflow and Ray nodes, each killed by the id of its own process."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.chaos import processes
from flows.local.environment import NO_SERVICES

_START_TIMEOUT_S = 180.0
_END_TIMEOUT_S = 10.0


def free_port() -> int:
    """A port on which no process listens now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


@dataclass
class Server:
    """A program that listens on `port` of this machine; it may be killed and started again."""

    command: list[str]
    environment: dict[str, str]
    log: Path
    port: int
    health: str  # path that answers with status 200 once the server is ready
    _process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Start the server. Raises :class:`TimeoutError` if it does not become ready."""
        with self.log.open("ab") as said:
            self._process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdout=said,
                stderr=said,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        if not processes.wait_until(self._answers, _START_TIMEOUT_S, 0.2):
            raise TimeoutError(f"{self.command} is not ready; see {self.log}")

    def kill(self) -> None:
        """SIGKILL the server and its children."""
        if self._process is not None:
            with suppress(psutil.Error):
                processes.end_all(psutil.Process(self._process.pid).children(recursive=True))
            self._process.kill()
            self._process.wait()
            self._process = None

    def send(self, signum: int) -> None:
        """Send a signal to the server's process alone."""
        if self._process is not None:
            self._process.send_signal(signum)

    def _answers(self) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with (
            suppress(urllib.error.URLError, OSError),
            opener.open(f"http://127.0.0.1:{self.port}{self.health}", timeout=5) as answer,
        ):
            return bool(answer.status == 200)
        return False


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Run the server for the duration of the block."""
    server.start()
    try:
        yield server
    finally:
        server.kill()


def prefect_server(folder: Path, environment: dict[str, str]) -> Server:
    """A Prefect server with its database in `folder`, without background services."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    variables = NO_SERVICES | {
        "PREFECT_HOME": str(folder),
        "PREFECT_UI_ENABLED": "0",
        "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
    }
    program = ["-m", "uvicorn", "--factory", "prefect.server.api.server:create_app"]
    command = [sys.executable, *program, "--host", "127.0.0.1", "--port", str(port), "--log-level", "error"]
    return Server(command, environment | variables, folder / "server.log", port, "/api/health")


def mlflow_server(folder: Path, environment: dict[str, str]) -> Server:
    """An MLflow server with all its files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    environment = environment | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    return Server(command, environment, folder / "server.log", port, "/health")


@dataclass(frozen=True)
class RayNode:
    """A Ray node started here; drivers and further nodes need `environment` to be admitted."""

    address: str
    environment: dict[str, str]
    process: "subprocess.Popen[bytes]"

    def processes(self) -> list[psutil.Process]:
        """All processes of the node."""
        descendants: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return descendants


@contextmanager
def ray_head(
    folder: Path,
    environment: dict[str, str],
    cpus: int = 4,
    host: str = "127.0.0.1",
    prefix: Sequence[str] = (),
) -> Iterator[RayNode]:
    """A Ray head with its files under `folder`, whose path must be short because Unix sockets lie in it."""
    port = free_port()
    access = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    options = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}"]
    with _ray_node(
        folder, [*options, f"--node-ip-address={host}"], environment | access, cpus, prefix
    ) as process:
        yield RayNode(f"{host}:{port}", access, process)


@contextmanager
def ray_worker(
    folder: Path, environment: dict[str, str], head: str, host: str, prefix: Sequence[str]
) -> Iterator[None]:
    """A further Ray node of one CPU, with address `host`, for the cluster whose head is at `head`."""
    with _ray_node(folder, [f"--address={head}", f"--node-ip-address={host}"], environment, 1, prefix):
        yield


@contextmanager
def _ray_node(
    folder: Path, options: list[str], environment: dict[str, str], cpus: int, prefix: Sequence[str]
) -> "Iterator[subprocess.Popen[bytes]]":
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"node-{free_port()}.log"
    command = [*prefix, sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--num-cpus={cpus}"]
    with log.open("ab") as said:
        process = subprocess.Popen(
            [*command, *options], env=environment, stdout=said, stderr=said, start_new_session=True
        )
    try:
        started = processes.wait_until(
            lambda: b"Ray runtime started" in log.read_bytes() or process.poll() is not None,
            _START_TIMEOUT_S,
            0.2,
        )
        if not started or process.poll() is not None:
            raise TimeoutError(f"a Ray node is not ready: {log.read_text()[-1000:]}")
        yield process
    finally:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_TIMEOUT_S)
        processes.end_all(children)
        process.kill()
        process.wait()


def clean_environment() -> dict[str, str]:
    """This process's variables, except those that would lead a trial to a user's servers, stores or clusters."""
    foreign = ("PREFECT_", "MLFLOW_", "RAY_", "EVERGREEN_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
