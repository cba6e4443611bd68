"""A report that Prefect's server refuses costs a warning, not the retraining."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from page_sample import report as sample
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks.report import show_in_prefect
from tasks.report_page.artifact import markdown
from training.plan import RunPlan

pytestmark = pytest.mark.usefixtures("prefect_harness")


@contextmanager
def behind_a_proxy(refused: Callable[[int], int]) -> Iterator[None]:
    """Send this process's requests to Prefect through a proxy, which answers an artifact with status `refused(bytes)`.

    An artifact for which that is 0 reaches the server, as do all other requests.
    """
    server = PREFECT_API_URL.value()

    class Proxy(BaseHTTPRequestHandler):
        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, content = refused(len(body)) if self.path == "/api/artifacts/" else 0, b""
            if not status:
                url = server.removesuffix("/api") + self.path
                kept = {name: value for name, value in self.headers.items() if name.lower() != "host"}
                answer = httpx.request(self.command, url, content=body, headers=kept)
                status, content = answer.status_code, answer.content
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = forward  # noqa: N815 - names of the base class

        def log_message(self, *_: object) -> None:
            pass

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{proxy.server_port}/api"}):
            yield
    finally:
        proxy.shutdown()
        proxy.server_close()


def shown(name: str, folder: Path) -> dict[str, Any]:
    """Publish a report and a picture for a recipe called `name`; returns what the server has, by key."""
    picture = folder / "learning_curves.png"
    picture.write_bytes(b"\x89PNG" + bytes(20_000))
    plan = SimpleNamespace(
        recipe=SimpleNamespace(name=name),
        settings=SimpleNamespace(tracking=SimpleNamespace(uri=None)),
        home=str(folder),
        paths=SimpleNamespace(report=folder / "report.html"),
    )
    show_in_prefect(cast(RunPlan, plan), sample(), [picture], "1")
    with get_client(sync_client=True) as client:
        return {
            artifact.key: artifact.data
            for artifact in client.read_artifacts()
            if str(artifact.key).startswith(name)
        }


def test_a_report_that_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="evergreen.report"), behind_a_proxy(lambda _: 0):
        artifacts = shown("taken", tmp_path)
    assert sorted(artifacts) == ["taken-learning-curves", "taken-report"]
    assert "## Gate" in artifacts["taken-report"]
    assert "evergreen.report" not in {record.name for record in caplog.records}  # the proxy has no websockets


def test_of_a_report_that_is_too_large_the_verdict_is_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limit = len(markdown(sample())) // 2
    proxy = behind_a_proxy(lambda size: 413 if size > limit else 0)
    with caplog.at_level(logging.WARNING, logger="evergreen.report"), proxy:
        artifacts = shown("large", tmp_path)
    assert sorted(artifacts) == ["large-report"]
    assert artifacts["large-report"].startswith("# ")
    assert "## Gate" not in artifacts["large-report"]
    assert f"it is in {tmp_path / 'report.html'}" in caplog.text
    assert f"it is in {tmp_path / 'learning_curves.png'}" in caplog.text
    assert "client_max_body_size" in caplog.text


@pytest.mark.parametrize("status", [401, 403, 422, 500])
def test_a_server_that_refuses_is_asked_once(
    status: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []

    def refused(size: int) -> int:
        asked.append(size)
        return status

    with caplog.at_level(logging.WARNING, logger="evergreen.report"), behind_a_proxy(refused):
        assert not shown(f"refused-{status}", tmp_path)
    assert len(asked) == 1
    assert str(status) in caplog.text
