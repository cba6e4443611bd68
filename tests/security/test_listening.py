"""What Evergreen starts listens to this machine alone."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

_PREFECT = """
import sys
from pathlib import Path
from flows.environment import prepare
from flows.prefect_server import LocalServer
from training.paths import home


prepare(home())
server = LocalServer(home())
server.wait()
print(flush=True)
sys.stdin.readline()
server.end()
"""


@contextmanager
def started(command: list[str], home: Path) -> Iterator[psutil.Process]:
    """A process with its children, which all end with the block."""
    process = subprocess.Popen(
        [sys.executable, *command],
        env=os.environ | {"EVERGREEN_HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    root = psutil.Process(process.pid)
    try:
        yield root
    finally:
        for one in [*root.children(recursive=True), root]:
            if one.is_running():
                one.kill()
        process.wait()


def addresses(root: psutil.Process) -> set[str]:
    """Where a process and its children listen, once they do."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and root.is_running():
        found = {one for process in [root, *root.children(recursive=True)] for one in _listening(process)}
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError("nothing listens")


def _listening(process: psutil.Process) -> set[str]:
    """Addresses that one process listens on; one that ended meanwhile has none."""
    try:
        connections = process.net_connections("inet")
    except (psutil.NoSuchProcess, FileNotFoundError):
        return set()
    return {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.parametrize("what", ["ui", "prefect"])
def test_only_this_machine_is_served(tmp_path: Path, what: str) -> None:
    ui = ["-m", "flows.cli", "ui", "--port", str(free_port())]
    with started(ui if what == "ui" else ["-c", _PREFECT], tmp_path) as root:
        assert addresses(root) == {"127.0.0.1"}
