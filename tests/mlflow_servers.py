"""Real MLflow servers that tests can kill and restart, and a proxy that simulates a faulty server."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_START_S = 600.0


class MlflowServer:
    """`mlflow server` with its artifacts in `folder`; its port stays the same across restarts.

    Runs, models and versions are in the database `database`, a URL of SQLAlchemy, or in an SQLite file in `folder`.
    """

    def __init__(self, folder: Path, database: str | None = None, workers: int = 1) -> None:
        self.folder = folder
        self.database = database or f"sqlite:///{folder}/mlflow.db"
        self.workers = workers
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, wait: bool = True) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        store = ["--backend-store-uri", self.database]
        artifacts = ["--artifacts-destination", str(self.folder / "artifacts")]
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--workers", str(self.workers)]
        with (self.folder / "server.log").open("ab") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *store, *artifacts, *options],
                stdout=said,
                stderr=said,
                start_new_session=True,
                env=os.environ
                | {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            )
        if wait:
            self._wait()

    def kill(self) -> None:
        """Kill the server and all its workers at once, as a crash of the machine would."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / "server.log").read_text()[-2000:]
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=5).close()
                return
            except OSError:
                time.sleep(0.1)
        raise AssertionError("MLflow's server did not start")


@contextmanager
def mlflow_server(folder: Path, database: str | None = None, workers: int = 1) -> Iterator[MlflowServer]:
    """Start a server for the duration of the block."""
    server = MlflowServer(folder, database, workers)
    try:
        server.start()
        yield server
    finally:
        server.kill()


class Proxy:
    """Forward requests to `port`, with faults that a test may switch on and off at any time.

    `away()`   stop listening
    `status`   answer every request whose path contains `about` with this status instead
    `held`     hold every request whose path contains `about` until `well_behaved()`, for at most 100 s
    `lose`     forward the next request whose path contains this text, but drop its answer
    """

    def __init__(self, port: int) -> None:
        self.upstream = port
        self.about = ""
        self.status: int | None = None
        self.held = False
        self._released = threading.Event()
        self.lose: str | None = None
        self.lost = 0
        self.hampered = 0  # requests that were held or answered with the wrong status
        self.seen: list[str] = []
        self.authorizations: set[str | None] = set()
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.back()
        self.uri = f"http://127.0.0.1:{self.port}"

    def back(self) -> None:
        """Listen (again) on the same port."""
        self._server = _Listener(("127.0.0.1", self.port), _handler(self))
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def away(self) -> None:
        """Stop listening: connections are refused."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def well_behaved(self) -> None:
        self.about, self.status, self.held, self.lose = "", None, False, None
        self._released.set()

    def hold(self) -> None:
        """Wait until the server behaves well, for less time than MLflow's client waits for an answer."""
        self._released.wait(100)


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


def _handler(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def relay(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            proxy.seen.append(self.path)
            proxy.authorizations.add(self.headers.get("Authorization"))
            if proxy.about in self.path:
                proxy.hampered += proxy.held or proxy.status is not None
                if proxy.held:
                    proxy.hold()
                if proxy.status is not None:
                    self.send_error(proxy.status)
                    return
            status, headers, content = ask(proxy.upstream, self, body)
            if proxy.lose is not None and proxy.lose in self.path:
                proxy.lose = None
                proxy.lost += 1
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in (
                    "transfer-encoding",
                    "connection",
                    "content-length",
                    "server",
                    "date",
                ):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = relay  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def ask(port: int, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
    """Return the answer of the server on `port` to `request`: status, headers, body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = dict(request.headers) | {"Host": f"127.0.0.1:{port}"}
    connection.request(request.command, request.path, body, headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, answer.getheaders(), content
