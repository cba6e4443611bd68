"""The Prefect server of one local run: it is started before Prefect is imported, and ends with the run.

The server is a separate process, on a port that can be reached from this machine only. Other users of the machine,
and web pages in a browser, can reach that port, too. So the server answers only requests that contain the run's
secret and are addressed to 127.0.0.1 or localhost, not to another host name that was made to resolve to 127.0.0.1.
The command holds the listening socket, so that a server that dies is replaced and clients notice no more than a
pause. The server watches its parent process, so that no server is left when the command is killed.
"""

import contextlib
import gc
import logging
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from flows.local.environment import api_is_configured
from tasks.doctor.prefect_server import check_server_answers, configured_server
from tasks.trackers.empty_stores import PREFECT, copy_empty
from training.errors import TransientError
from training.storage.paths import Home

log = logging.getLogger("evergreen.prefect")

APPLICATION = "prefect.server.api.server:create_app"
_DATABASE_VARIABLES = ("PREFECT_SERVER_DATABASE_CONNECTION_URL", "PREFECT_API_DATABASE_CONNECTION_URL")
_START_TIMEOUT_S = 120.0
_PROBE_TIMEOUT_S = 2.0  # the socket accepts connections before the server answers them
_END_TIMEOUT_S = 5.0
_SEND_TIMEOUT_S = 10.0
_MOST_RESTARTS = 4
_COLLECT_EVERY_S = 10.0
_HOSTS = ["127.0.0.1", "localhost"]


class LocalServer:
    """A Prefect server for this process, with its database in `home`; it answers only clients that send `secret`."""

    def __init__(self, home: Home):
        self.log = home.prefect / "server.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/api"
        self.secret = f"evergreen:{secrets.token_hex(32)}"
        self._ending, self._was_ready = threading.Event(), threading.Event()
        _begin_with_empty_database(home)
        self._log_begins_at = self.log.stat().st_size if self.log.exists() else 0
        self._process = self._spawn()
        self._keeper = threading.Thread(target=self._keep, name="evergreen-prefect", daemon=True)
        self._keeper.start()

    def wait(self) -> None:
        """Wait until the server answers. Raises :class:`TransientError` with its last error when it does not."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and self._keeper.is_alive():
            with contextlib.suppress(urllib.error.URLError, OSError):
                opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
                with opener.open(f"{self.url}/health", timeout=_PROBE_TIMEOUT_S) as answer:
                    if answer.status == 200:
                        self._was_ready.set()
                        return
            time.sleep(0.1)
        raise TransientError(
            f"Prefect's server did not start; {self.log} says: {_reason(self.log, self._log_begins_at)}"
        )

    def end(self) -> None:
        """End the server process, by SIGKILL if it does not end within 5 s of SIGTERM, and close the socket."""
        self._ending.set()
        self._process.terminate()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._keeper.join()
        self._socket.close()

    def _keep(self) -> None:
        """Restart the server when it dies, but not one that has never answered: that would fail again."""
        for left in reversed(range(_MOST_RESTARTS + 1)):
            status = self._process.wait()
            if self._ending.is_set() or not self._was_ready.is_set() or not left:
                return
            log.warning("Prefect's server ended with status %d; starting it again", status)
            self._process = self._spawn()
            if self._ending.is_set():  # meanwhile; `end` has ended the server before
                self._process.terminate()

    def _spawn(self) -> "subprocess.Popen[bytes]":
        number = self._socket.fileno()
        # -P: otherwise Python would import a folder `flows` of the working directory instead of Evergreen's package.
        module = ["-P", "-m", "flows.local.prefect_server"]
        command = [sys.executable, *module, APPLICATION, str(number), str(os.getpid())]
        quiet = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
        # The secret is not an argument of the command: any user can read arguments.
        secret = {"PREFECT_SERVER_API_AUTH_STRING": self.secret}
        with self.log.open("ab") as log_file:
            return subprocess.Popen(
                command,
                env=os.environ | quiet | secret,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                pass_fds=(number,),
                start_new_session=True,  # no Ctrl-C: the flow still has to report its state to the server
            )


@contextmanager
def prefect_api(
    home: Home, meanwhile: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Iterator[None]:
    """Provide a Prefect API for the block: the server that the user has configured, else a new server for this run.

    `meanwhile` is entered while the new server starts, and left before that server ends.
    """
    if api_is_configured() or ("prefect" in sys.modules and configured_server() is not None):
        check_server_answers()
        yield
        return
    server = LocalServer(home)
    try:
        from prefect.settings import (
            PREFECT_API_AUTH_STRING,
            PREFECT_API_URL,
            PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
            temporary_settings,
        )

        # Nothing evaluates heartbeats on this server, and they would delay the end of each flow by up to a second.
        ours: dict[Any, Any] = {
            PREFECT_API_URL: server.url,
            PREFECT_API_AUTH_STRING: server.secret,
            PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
        }
        with meanwhile(), temporary_settings(ours):
            server.wait()
            try:
                yield
            finally:
                _end_services()
    finally:
        server.end()


def _end_services() -> None:
    """End Prefect's background services of this process, after they sent the events and logs that they still have.

    Such a service keeps the address and the secret of the server with which it began, also when that server is gone:
    a further run of this process would wait for it in vain. Later uses of a service start a new one.
    """
    from prefect.concurrency.services import (
        ConcurrencySlotAcquisitionService,
        ConcurrencySlotAcquisitionWithLeaseService,
    )
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    def end() -> None:
        for service in (
            ConcurrencySlotAcquisitionService,
            ConcurrencySlotAcquisitionWithLeaseService,
            EventsWorker,
            APILogWorker,
        ):
            service.drain_all(timeout=_SEND_TIMEOUT_S)

    # In a thread, since a caller of the Python API may run an event loop, in which `drain_all` does not wait.
    thread = threading.Thread(target=end, name="evergreen-prefect-services")
    thread.start()
    thread.join()


def _begin_with_empty_database(home: Home) -> None:
    """Copy a ready-made empty database into a new home, which saves the server the migrations.

    Does nothing if the user has configured another database.
    """
    if not any(name in os.environ for name in _DATABASE_VARIABLES):
        folder = Path(os.environ.get("PREFECT_HOME", home.prefect)).expanduser()
        copy_empty(PREFECT, folder / "prefect.db")


def _reason(log_file: Path, begins_at: int) -> str:
    """The last error in the server's log, which may be followed by lines of its web framework.

    The lines before byte `begins_at` are of earlier servers.
    """
    lines = log_file.read_bytes()[begins_at:].decode(errors="replace").strip().splitlines()
    return next((line for line in reversed(lines) if "Error: " in line), lines[-1] if lines else "nothing")


def _serve(number: int, parent: int) -> None:
    """Run the server on the inherited socket until the parent process is gone."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    collect_garbage_in_thread(_COLLECT_EVERY_S)
    import uvicorn

    config = uvicorn.Config(_application, factory=True, log_level="error", lifespan="on")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=number)])


def _application() -> Any:
    """Prefect's application behind a check of the Host header, that is, of the name that the client connects to."""
    from prefect.server.api.server import create_app
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    return TrustedHostMiddleware(create_app(), allowed_hosts=_HOSTS)


def collect_garbage_in_thread(every_s: float) -> None:
    """Collect this process's reference cycles in a thread of their own, every `every_s` seconds.

    Python collects them in the thread that happens to allocate memory: here, the thread of the event loop. A collected
    cursor is reset by SQLite, which waits while another thread uses the cursor's connection. If that thread itself
    waits for a write lock that the event loop would release, both wait until SQLite's 60 s are over, and a request
    fails with "database is locked". A thread of its own can wait without stopping the event loop.
    """

    def collect() -> None:
        time.sleep(every_s)
        gc.collect()
        gc.freeze()  # what is left now, mostly 286,000 objects of imported modules, is not looked through again
        while True:
            time.sleep(every_s)
            gc.collect()

    gc.disable()
    threading.Thread(target=collect, name="garbage", daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


if __name__ == "__main__":
    _serve(int(sys.argv[2]), int(sys.argv[3]))
