"""A real HTTP server on this machine whose answers a test defines."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Site(ThreadingHTTPServer):
    """HTTP server that answers each path by calling `answers[path]`, and records the paths of all requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        self.requests: list[str] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client that closed the connection early
            super().handle_error(request, client_address)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"

    def give(self, path: str, content: bytes, announced: int | None = None) -> str:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(content) if announced is None else announced))
            handler.end_headers()
            handler.wfile.write(content)

        self.answers[path] = answer
        return self.url(path)

    def fail(self, path: str, status: int, **headers: str) -> str:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            for name, value in {**headers, "Content-Length": "0"}.items():
                handler.send_header(name, value)
            handler.end_headers()

        self.answers[path] = answer
        return self.url(path)


class Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        self.server.answers[self.path](self)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[Site]:
    """Run a site for the duration of the block."""
    server = Site()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
