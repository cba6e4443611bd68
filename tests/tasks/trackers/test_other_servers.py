"""An address at which another server answers than MLflow's."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tasks.trackers.mlflow_store import NoMlflowError, connect
from training.storage.paths import Home


class Pages(BaseHTTPRequestHandler):
    """Answers with a page: by status 404 below /wrong, else as a login page does."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(404 if self.path.startswith("/wrong") else 200)
        self.end_headers()
        self.wfile.write(b"<html></html>")

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("path", ["/wrong", "/login"])
def test_a_page_in_place_of_an_answer_is_a_wrong_address(address: str, path: str, home: Home) -> None:
    with pytest.raises(
        NoMlflowError, match=r"something answers there that is not MLflow's API.*Correct the address"
    ):
        connect(address + path, home)
