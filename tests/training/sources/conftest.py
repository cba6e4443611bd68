"""What tests of sources share: real data where it is, a real HTTP server, and reading a split back."""

import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from training.records import SourceFiles
from training.sources.locate import reader


class Site(ThreadingHTTPServer):
    """Answers each path as `answers[path]` does, and counts requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        self.requests: list[str] = []

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

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def site() -> Iterator[Site]:
    server = Site()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="session")
def real_data() -> Path:
    folder = os.environ.get("EVERGREEN_TEST_DATA")
    if not folder:
        pytest.skip("EVERGREEN_TEST_DATA names no folder with FashionMNIST/raw and cifar10-jpeg.tar.xz")
    return Path(folder)


def read_rows(files: SourceFiles, split: str, rows: list[int] | None = None) -> list[dict[str, Any]]:
    """Rows as another process would read them: knowing nothing but `files`."""
    again = SourceFiles.model_validate_json(files.model_dump_json())
    source = reader(again)
    wanted = list(range(source.count(again, split))) if rows is None else rows
    return [row for batch in source.read(again, split, wanted) for row in batch.to_pylist()]


def pixels(row: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(row["image"], np.uint8).reshape(row["height"], row["width"], row["channels"])


@pytest.fixture
def rows_of() -> Callable[..., list[dict[str, Any]]]:
    return read_rows


@pytest.fixture
def pixels_of() -> Callable[[dict[str, Any]], np.ndarray[Any, np.dtype[np.uint8]]]:
    return pixels
