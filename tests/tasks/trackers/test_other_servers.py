"""An address at which another server answers than MLflow's."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from small_runs import prepared, tiny_settings

from tasks.preflight import preflight
from tasks.trackers.mlflow_store import NoMlflowError, connect
from tasks.train import keep_plan
from training.data.sources.digits import Digits
from training.errors import SettingError
from training.plan import identify
from training.recipe import load
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


def test_the_checks_before_a_training_refuse_the_address(address: str, home: Home) -> None:
    """Later, the run waits for the server instead: a proxy may give a page while the server is away."""
    _, ref = load("digits")
    settings = tiny_settings(tracking={"uri": f"{address}/wrong"})
    files = Digits().fetch(home.sources / "digits")
    plan = keep_plan(identify(home, ref, settings, files))
    with pytest.raises(SettingError, match="Correct the address"):
        preflight.fn(plan, prepared(home))
