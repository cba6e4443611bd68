"""`evergreen doctor` finds problems, names remedies and changes nothing."""

import json
import os
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path

import pytest
from filelock import FileLock
from packaging.requirements import Requirement
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.cli.doctor import checks
from flows.cli.main import main
from tasks.doctor import machine, packages, services, store
from tasks.doctor.prefect_server import check_server_answers
from training.errors import EXIT_BAD_SETTING, EXIT_RESOURCE, SettingError


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Servers of a busy machine may answer late."""
    for module in (services, store):
        monkeypatch.setattr(module, "_TIMEOUT_S", 60.0)


def test_a_sound_installation(home):
    all_checks = list(checks(home))
    assert [check.name for check in all_checks if check.ok is False] == []
    names = [check.name for check in all_checks]
    assert len(names) == len(set(names))
    assert {"Python", "packages", "disk", "memory", "home", "locks", "MLflow store", "Prefect server"} <= set(
        names
    )


def test_a_home_that_cannot_be_written_is_a_finding(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("EVERGREEN_HOME", str(tmp_path / "file" / "home"))
    checks_by_name = {check.name: check for check in checks()}
    assert checks_by_name["home"].ok is False
    assert str(tmp_path / "file" / "home") in checks_by_name["home"].found
    broken = [check for check in checks_by_name.values() if check.ok is False]
    assert broken
    assert all(check.remedy for check in broken)


def test_the_command_reports_a_home_that_cannot_be_written_and_checks_the_rest(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("EVERGREEN_HOME", str(tmp_path / "file" / "home"))
    assert main(["doctor", "--json"]) == EXIT_RESOURCE
    ok_by_name = {
        check["name"]: check["ok"] for check in json.loads(capsys.readouterr().out.splitlines()[-1])
    }
    assert ok_by_name["home"] is False
    assert ok_by_name["packages"] is True
    assert "Python" in ok_by_name  # later checks still run
    assert "Prefect server" in ok_by_name


def test_a_damaged_file_of_prefects_profiles_is_a_failed_check(home, tmp_path, monkeypatch, capsys):
    (tmp_path / "profiles.toml").write_text("profiles = 3")
    monkeypatch.setenv("PREFECT_PROFILES_PATH", str(tmp_path / "profiles.toml"))
    assert main(["doctor", "--json"]) == EXIT_RESOURCE
    checks_by_name = {check["name"]: check for check in json.loads(capsys.readouterr().out.splitlines()[-1])}
    assert [name for name, check in checks_by_name.items() if check["ok"] is False] == ["Prefect server"]
    assert str(tmp_path / "profiles.toml") in checks_by_name["Prefect server"]["found"]
    assert "Ray and GPUs" in checks_by_name  # later checks still run


def test_packages_are_compared_with_the_requirements():
    wanted = packages.declared()
    assert {"torch", "ray", "fastapi", "sqlalchemy"} <= {
        requirement.name for requirement in wanted.requirements
    }
    assert "pytest" not in {requirement.name for requirement in wanted.requirements}  # belongs to an extra
    numpy = metadata.version("numpy")
    assert packages.requirement_check(Requirement(f"numpy=={numpy}")) is None
    assert packages.requirement_check(Requirement("torch==2.14.0")) is None  # installed may be 2.14.0+cu130
    wrong = packages.requirement_check(Requirement("fastapi<0.1"))
    assert wrong.ok is False
    assert "Prefect's server does not start" in wrong.found
    assert wrong.remedy == "pip install 'fastapi<0.1'"
    missing = packages.requirement_check(Requirement("no-such-package-at-all>=3"))
    assert (missing.ok, missing.found) == (False, "not installed; required is >=3")


def test_python_is_compared_with_the_declared_range():
    assert packages.python_check(">=3.11").ok
    assert packages.python_check("<3.0").ok is False


@pytest.mark.parametrize(("free", "ok"), [(10e9, True), (4e9, None), (0.5e9, False)])
def test_disk_space(tmp_path, free, ok):
    check = machine.disk_check(tmp_path, int(free))
    assert check.ok is ok
    assert bool(check.remedy) == (ok is not True)


@pytest.mark.parametrize(
    ("limit", "used", "stat", "cache"),
    [
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ],
)
def test_the_memory_in_use_of_a_container_is_not_free(tmp_path, limit, used, stat, cache):
    assert list(machine.container_memory(tmp_path)) == []
    (tmp_path / limit).parent.mkdir(exist_ok=True)
    (tmp_path / limit).write_text("4000000000\n")
    assert list(machine.container_memory(tmp_path)) == [machine.ContainerMemory(4_000_000_000, 4_000_000_000)]
    (tmp_path / used).write_text("3800000000\n")
    (tmp_path / stat).write_text(f"anon 3000000000\n{cache} 500000000\n")
    assert list(machine.container_memory(tmp_path)) == [machine.ContainerMemory(4_000_000_000, 700_000_000)]
    (tmp_path / limit).write_text("max\n")
    assert list(machine.container_memory(tmp_path)) == []


def test_limits_of_the_machine():
    assert machine.memory_check(8 * 10**9, 16 * 10**9).ok
    assert machine.memory_check(10**9, 16 * 10**9).ok is None
    assert [machine.cpu_check(cpus).ok for cpus in (1, 2)] == [None, True]
    assert [machine.shared_memory_check(size).ok for size in (64 << 20, 8 << 30)] == [None, True]
    limits = (256, 65536, resource.RLIM_INFINITY)
    assert [machine.open_files_check(limit).ok for limit in limits] == [False, True, True]


def test_locks_that_work(home):
    assert store.lock_check(home).ok
    with FileLock(home.locks / "doctor.lock"):
        assert store._is_held(home.locks / "doctor.lock")
    assert not store._is_held(home.locks / "doctor.lock")


def test_a_home_on_a_local_file_system(tmp_path):
    assert store.file_system_check(tmp_path).ok
    assert store.file_system(tmp_path) != "unknown"


@pytest.mark.skipif(
    not Path("/proc/self").is_dir(), reason="needs Linux's /proc, a file system of its own type"
)
def test_file_systems_are_distinguished():
    assert store.file_system(Path("/proc/self")) == "proc"


@contextmanager
def answering(body, certificate=None):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"{'http' if certificate is None else 'https'}://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_an_mlflow_server(home):
    with answering(metadata.version("mlflow")) as uri:
        assert store.mlflow_server_check(uri).ok
        names = [check.name for check in store.store_checks(home, uri, deep=False)]
        assert names[-2:] == ["MLflow server", "MLflow credentials"]
    with answering("1.0") as uri:
        assert store.mlflow_server_check(uri).ok is None
    assert store.mlflow_server_check(uri).ok is False  # the server has ended


def test_a_prefect_server_that_does_not_answer_or_has_another_version():
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with answering('"2.0.0"') as uri, temporary_settings({PREFECT_API_URL: f"{uri}/api"}):
        check = services.prefect_check()
        assert (check.ok, check.found) == (False, f"{uri}/api answers, version 2.0.0")
    with temporary_settings({PREFECT_API_URL: f"{uri}/api"}):
        began = time.perf_counter()
        check = services.prefect_check()
        assert (check.ok, time.perf_counter() - began < 30) == (False, True)
        assert f"{uri}/api" in check.found


def dead_url():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}/api"


def said_of(tmp_path, **variables):
    """The doctor's message about the Prefect server that a new process's environment names."""
    program = (
        "from tasks.doctor.prefect_server import check_server_answers\n"
        "from training.errors import TransientError\n"
        "try:\n    check_server_answers()\n    print('fine')\n"
        "except TransientError as error:\n    print(error)"
    )
    environment = os.environ | {"PREFECT_HOME": str(tmp_path)} | variables
    environment["PYTHONPATH"] = str(Path(services.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=tmp_path,
    )
    return done.stdout.strip()


@pytest.mark.slow
def test_a_dead_prefect_server_is_named_with_the_origin_of_its_address(tmp_path):
    url = dead_url()
    assert said_of(tmp_path) == "fine"
    said = said_of(tmp_path, PREFECT_API_URL=url)
    assert said.startswith(f"Prefect server {url} (environment variable PREFECT_API_URL) does not answer")
    assert "unset PREFECT_API_URL" in said
    profiles = tmp_path / "profiles.toml"
    profiles.write_text(f'active = "work"\n[profiles.work]\nPREFECT_API_URL = "{url}"\n')
    said = said_of(tmp_path)
    assert f"{url} (profile 'work' in {profiles})" in said
    assert "prefect config unset PREFECT_API_URL" in said
    profiles.unlink()
    (tmp_path / "prefect.toml").write_text(f'[api]\nurl = "{url}"\n')
    assert "prefect.toml" in said_of(tmp_path)


class Pages(BaseHTTPRequestHandler):
    """Answers each GET with a page, and other requests with 405, as Prefect's server does outside of `/api`."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html></html>")

    def do_POST(self):
        self.send_error(405)

    def log_message(self, *_arguments):
        pass


def test_an_address_without_prefect_s_api_is_a_wrong_setting():
    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with (
            temporary_settings({PREFECT_API_URL: url}),
            pytest.raises(SettingError, match=rf"{url} .*whose address ends in /api\. .*correct the address"),
        ):
            check_server_answers()
        server.shutdown()


@pytest.mark.parametrize("url", ["127.0.0.1:4200/api", "localhost"])
def test_an_address_without_a_scheme_is_a_wrong_setting(url):
    with (
        temporary_settings({PREFECT_API_URL: url}),
        pytest.raises(SettingError, match="begins neither with http:// nor with https://"),
    ):
        check_server_answers()


@pytest.mark.usefixtures("prefect_harness")
def test_a_prefect_server_that_answers_is_used():
    check_server_answers()


@pytest.mark.usefixtures("prefect_harness")
def test_a_prefect_server_that_answers():
    assert services.prefect_check().ok


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_ray_and_gpus():
    assert services.ray_check().ok
    assert services.gpu_check().ok is not False


def test_a_check_that_breaks_is_a_finding(home):
    (home.root / "mlflow.db").mkdir()
    (home.root / "locks").write_text("not a folder")
    checks_by_name = {check.name: check for check in checks(home)}
    assert checks_by_name["locks"].ok is False
    broken = [check for check in checks_by_name.values() if check.ok is False]
    assert broken
    assert [check.name for check in broken if not check.remedy] == []
    assert "Prefect server" in checks_by_name


def test_an_mlflow_server_s_certificate_is_checked_as_mlflow_does(home, monkeypatch, tmp_path):
    certificate = tmp_path / "server.pem"
    subprocess.run(
        (
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=localhost",
            ),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", certificate, "-out", tmp_path / "own.pem"),
        ),
        check=True,
        capture_output=True,
    )
    certificate.write_bytes(certificate.read_bytes() + (tmp_path / "own.pem").read_bytes())
    with answering(metadata.version("mlflow")) as uri, monkeypatch.context() as patch:
        patch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "missing.pem"))
        assert store.mlflow_server_check(uri).ok, "no certificate is needed"
    with answering(metadata.version("mlflow"), certificate) as uri:
        with monkeypatch.context() as patch:
            patch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "missing.pem"))
            check = store.mlflow_server_check(uri)
            assert f"{tmp_path}/missing.pem, which one of MLFLOW_TRACKING_SERVER_CERT_PATH" in check.found
            assert check.remedy.startswith("Set MLFLOW_TRACKING_SERVER_CERT_PATH")
        for variable, value in (
            ("MLFLOW_TRACKING_SERVER_CERT_PATH", str(tmp_path / "own.pem")),
            ("REQUESTS_CA_BUNDLE", str(tmp_path / "own.pem")),
            ("MLFLOW_TRACKING_INSECURE_TLS", "true"),
        ):
            assert "CERTIFICATE_VERIFY_FAILED" in store.mlflow_server_check(uri).found
            with monkeypatch.context() as patch:
                patch.setenv(variable, value)
                assert store.mlflow_server_check(uri).ok


def test_an_empty_address_is_refused(home, capsys):
    assert main(["doctor", "--tracking-uri", ""]) == EXIT_BAD_SETTING
    assert "tracking_uri: it is empty" in capsys.readouterr().err
