"""The Prefect server of a local run: started when needed, replaced if it dies, ended with the run."""

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from flows.local.prefect_server import LocalServer, _reason
from training.errors import TransientError
from training.storage.paths import Home

PARENT = """
import sys, time
from flows.local.prefect_server import LocalServer
from training.storage.paths import home_to_write
server = LocalServer(home_to_write())
server.wait()
print(server._process.pid, flush=True)
time.sleep(600)
"""


def healthy(server: LocalServer) -> bool:
    with urllib.request.urlopen(f"{server.url}/health", timeout=60) as answer:
        return bool(answer.status == 200)


def gone(pid: int, within_s: float = 120) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_a_server_that_dies_is_replaced_at_the_same_address_and_ends_with_the_block(home: Home) -> None:
    server = LocalServer(home)
    try:
        server.wait()
        assert server.url.startswith("http://127.0.0.1:")
        first = server._process.pid
        os.kill(first, signal.SIGKILL)
        assert healthy(server)  # the request waits in the listening socket until the next server is ready
        assert server._process.pid != first
    finally:
        server.end()
    assert gone(server._process.pid)


@pytest.mark.extended
def test_the_server_ends_with_a_killed_command(home: Home) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    assert psutil.pid_exists(server)
    parent.kill()
    parent.wait()
    assert gone(server)


@pytest.mark.slow
def test_the_reason_is_reported_when_the_server_does_not_start(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", "sqlite+aiosqlite:////nowhere/at/all.db")
    server = LocalServer(home)
    try:
        with pytest.raises(TransientError, match=r"server\.log says: .*(unable to open database|nowhere)"):
            server.wait()
    finally:
        server.end()


# The main thread, as an event loop, holds the write lock when it allocates enough that Python would collect garbage
# there: among it a cursor of the connection whose thread waits for that lock.
LOCKED = """
import sqlite3, sys, threading, time
from flows.local.prefect_server import collect_garbage_in_thread

collect_garbage_in_thread(0.1)
time.sleep(1)  # until the first collection, after which older objects are left out
loop = sqlite3.connect(sys.argv[1], isolation_level=None)
loop.execute("CREATE TABLE runs (id)")
other = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=300, check_same_thread=False)
cycle = [other.execute("VALUES (1), (2)")]
cycle.append(cycle)
loop.execute("BEGIN IMMEDIATE")
begun = threading.Event()

def insert():
    begun.set()
    other.execute("INSERT INTO runs VALUES (1)")

thread = threading.Thread(target=insert)
thread.start()
begun.wait()
time.sleep(1)
del cycle
kept = [[] for _ in range(100_000)]
loop.execute("COMMIT")
thread.join()
print(*loop.execute("SELECT count(*) FROM runs").fetchone())
"""


def test_a_collected_cursor_does_not_stop_the_event_loop(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOCKED, str(tmp_path / "runs.db")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1\n"


def test_a_server_that_is_replaced_while_the_run_ends_is_ended(home: Home) -> None:
    """Scenario: the server dies in the moment in which the run ends, so `end` finds the process that is gone."""
    began, go_on = threading.Event(), threading.Event()

    class Stub(LocalServer):
        """Starts a process that waits, and waits itself before the second start."""

        def _spawn(self) -> "subprocess.Popen[bytes]":
            if hasattr(self, "_process"):
                began.set()
                go_on.wait()
            return subprocess.Popen(["sleep", "3600"])

    server = Stub(home)
    server._was_ready.set()
    server._process.kill()
    began.wait()
    ending = threading.Thread(target=server.end)
    ending.start()
    assert server._ending.wait(60)
    go_on.set()
    ending.join(120)
    assert not ending.is_alive()
    assert server._process.poll() == -signal.SIGTERM


def test_an_error_of_an_earlier_server_is_not_quoted(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("sqlite3.OperationalError: disk full\n")
    size = log.stat().st_size
    assert _reason(log, size) == "nothing"
    log.write_text(log.read_text() + "OSError: port\nApplication startup failed.\n")
    assert _reason(log, size) == "OSError: port"
