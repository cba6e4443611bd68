"""`evergreen ui` serves MLflow's pages for this home, or explains why it can't."""

import contextlib
import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from flows.cli.ui import check_port
from training.errors import EXIT_BAD_SETTING, EXIT_RESOURCE, ResourceError, SettingError


@contextlib.contextmanager
def listening() -> "contextlib.Iterator[int]":
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def ui(home: Path, port: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flows.cli.main", "ui", "--port", str(port)],
        capture_output=True,
        text=True,
        env=os.environ | {"EVERGREEN_HOME": str(home)},
        check=False,
        timeout=120,
    )


def test_a_taken_port_is_refused_with_its_holder_and_a_free_port(tmp_path: Path) -> None:
    with listening() as port:
        done = ui(tmp_path, port)
        assert done.returncode == EXIT_RESOURCE
        assert f"--port {port}: process {os.getpid()} " in done.stderr
        other = int(done.stderr.rpartition("evergreen ui --port ")[2])
        check_port(other)
        with pytest.raises(ResourceError, match="already"):
            check_port(port)
    check_port(port)  # the port is free again


@pytest.mark.extended
@pytest.mark.parametrize("port", [-1, 0, 65536])
def test_an_invalid_port_is_refused(tmp_path: Path, port: int) -> None:
    with pytest.raises(SettingError, match="from 1 to 65535"):
        check_port(port)
    assert ui(tmp_path, port).returncode == EXIT_BAD_SETTING


@pytest.mark.slow
def test_the_pages_are_served_from_a_free_port(tmp_path: Path) -> None:
    with listening() as port:
        pass
    server = subprocess.Popen(
        [sys.executable, "-m", "flows.cli.main", "ui", "--port", str(port)],
        env=os.environ | {"EVERGREEN_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().decode().split()[-1]
        assert address == f"http://127.0.0.1:{port}/#/experiments?workflowType=machine_learning"
        assert answer(server, f"http://127.0.0.1:{port}/health") == b"OK"
    finally:
        parts = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        for part in parts:
            with contextlib.suppress(psutil.NoSuchProcess):
                part.kill()
        server.communicate()


def answer(server: "subprocess.Popen[bytes]", url: str) -> bytes:
    """The content at `url`, as soon as the server answers; the server must be alive until then."""
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as page:
                return bytes(page.read())
        except OSError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(0.5)
                raise
