"""Servers that Evergreen starts listen only to this machine."""

import base64
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

_PREFECT = """
import sys
from pathlib import Path
from flows.local.environment import prepare
from flows.local.prefect_server import LocalServer
from training.storage.paths import home_to_write


prepare(home_to_write())
server = LocalServer(home_to_write())
server.wait()
print(server.url, server.secret, flush=True)
sys.stdin.readline()
server.end()
"""


@contextmanager
def started(command: list[str], home: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process and its children, which all end with the block."""
    process = subprocess.Popen(
        [sys.executable, *command],
        env=os.environ | {"EVERGREEN_HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    root = psutil.Process(process.pid)
    try:
        yield process
    finally:
        for member in [*root.children(recursive=True), root]:
            if member.is_running():
                member.kill()
        process.wait()


def addresses(root: psutil.Process) -> set[str]:
    """Addresses at which a process or its children listen."""
    return {address for process in [root, *root.children(recursive=True)] for address in _listening(process)}


def _listening(process: psutil.Process) -> set[str]:
    """Addresses at which one process listens; none if the process has ended meanwhile."""
    try:
        connections = process.net_connections("inet")
    except (psutil.NoSuchProcess, FileNotFoundError):
        return set()
    return {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}


def wait_until_it_answers(url: str) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                assert answer.status == 200
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"{url} does not answer")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_mlflows_pages_are_served_to_this_machine_alone(tmp_path: Path) -> None:
    port = free_port()
    with started(["-m", "flows.cli.main", "ui", "--port", str(port)], tmp_path) as ui:
        wait_until_it_answers(f"http://127.0.0.1:{port}/health")
        assert addresses(psutil.Process(ui.pid)) == {"127.0.0.1"}


def answer_of(url: str, secret: str = "", **headers: str) -> int:
    """HTTP status of a request for the list of flows."""
    offered = {"Authorization": f"Basic {base64.b64encode(secret.encode()).decode()}"} if secret else {}
    request = urllib.request.Request(f"{url}/flows/filter", b"{}", offered | headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


@pytest.mark.extended
def test_the_prefect_server_of_a_run_serves_this_machine_alone(tmp_path: Path) -> None:
    with started(["-c", _PREFECT], tmp_path) as run:
        assert run.stdout is not None
        url, secret = run.stdout.readline().decode().split()
        assert answer_of(url) == 401
        assert answer_of(url, secret=f"{secret[:-1]}x") == 401
        assert answer_of(url, secret=secret) == 200
        assert answer_of(url, secret=secret, host="rebound.example") == 400
        assert answer_of(url, secret=secret, host="localhost:1") == 200
        processes = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
        assert [process.cmdline() for process in processes if secret in " ".join(process.cmdline())] == []
        assert addresses(psutil.Process(run.pid)) == {"127.0.0.1"}
