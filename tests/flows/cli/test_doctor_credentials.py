"""`evergreen doctor` names the refused credential and the variable to set, and shows no secret."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata

import fsspec
import pytest
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from s3_server import S3Server

from flows.cli.main import main
from flows.local.prefect_server import LocalServer
from tasks.doctor import Check, services, store
from tasks.doctor.credentials import object_store_checks
from tasks.doctor.prefect_server import check_server_answers
from tasks.doctor.services import prefect_check
from tasks.doctor.store import mlflow_server_checks
from training.errors import EXIT_RESOURCE, SettingError
from training.storage.paths import Home

WORD = "correct-horse-battery"
_ACCEPTED = "Basic " + base64.b64encode(f"me:{WORD}".encode()).decode()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Servers of a busy machine may answer late."""
    for module in (services, store):
        monkeypatch.setattr(module, "_TIMEOUT_S", 60.0)


@contextmanager
def mlflow_server(hides_version: bool = False) -> Iterator[str]:
    """A server with MLflow's paths that accepts the user `me` alone; yields host and port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_open = self.path == "/version" and not hides_version
            accepted = is_open or self.headers.get("Authorization") == _ACCEPTED
            body = metadata.version("mlflow") if self.path == "/version" else json.dumps({"experiments": []})
            self.send_response(200 if accepted else 401)
            self.end_headers()
            self.wfile.write(body.encode() if accepted else b"")

        do_POST = do_GET  # noqa: N815 - name of the base class

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def _no_credentials_of_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"):
        monkeypatch.setenv(name, "")


def texts(checks: list[Check]) -> str:
    return "\n".join(check.model_dump_json() for check in checks)


@pytest.mark.parametrize("hides_version", [False, True])
def test_credentials_of_mlflow(home: Home, hides_version: bool) -> None:
    with mlflow_server(hides_version) as address:
        server, refused = mlflow_server_checks(f"http://{address}", home)
        assert server.ok is (None if hides_version else True)
        assert refused.ok is False
        assert "refuses the credentials (status 401)" in refused.found
        assert "MLFLOW_TRACKING_PASSWORD is not set" in refused.remedy

        wrong = list(mlflow_server_checks(f"http://me:another-{WORD}@{address}", home))
        assert [check.ok for check in wrong][-1] is False
        right = list(mlflow_server_checks(f"http://me:{WORD}@{address}", home))
        assert [check.ok for check in right][-1] is True
        assert f"http://{address}" in right[-1].found
        assert WORD not in texts(wrong) + texts(right)


def test_the_command_shows_no_password_of_an_address(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"http://me:{WORD}@127.0.0.1:9"
    assert main(["doctor", "--json", "--tracking-uri", address]) == EXIT_RESOURCE
    said = capsys.readouterr()
    assert "http://127.0.0.1:9" in said.out
    assert WORD not in said.out + said.err
    assert home.root.is_dir()


@pytest.mark.extended
def test_credentials_of_prefect(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    server = LocalServer(home)
    try:
        server.wait()
        monkeypatch.setenv("PREFECT_API_AUTH_STRING", "")
        with temporary_settings({PREFECT_API_URL: server.url, PREFECT_API_AUTH_STRING: f"evergreen:{WORD}"}):
            refused = prefect_check()
            assert refused.ok is False
            assert "refuses the credentials (status 401)" in refused.found
            assert "Set PREFECT_API_AUTH_STRING" in refused.remedy
            assert "PREFECT_API_AUTH_STRING is not set" in refused.remedy
            assert WORD not in texts([refused])
            with pytest.raises(SettingError, match=r"refuses the credentials.*PREFECT_API_AUTH_STRING"):
                check_server_answers()
        with temporary_settings({PREFECT_API_URL: server.url, PREFECT_API_AUTH_STRING: server.secret}):
            assert prefect_check().ok
            check_server_answers()
    finally:
        server.end()


def test_credentials_of_an_object_store(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = s3_server.new_bucket()
    (accepted,) = object_store_checks(url)
    assert accepted.ok
    files = fsspec.filesystem("s3")
    files.clear_instance_cache()
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    try:
        (refused,) = object_store_checks(url)
    finally:
        files.clear_instance_cache()
    assert refused.ok is False
    assert "Set credentials" in refused.found
    assert "AWS_SECRET_ACCESS_KEY is not set" in refused.remedy
    assert list(object_store_checks(None)) == []
