"""The doctor: finds what is wrong, says what to do, and leaves everything as it is."""

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path

import psutil
import pytest
from filelock import FileLock
from packaging.requirements import Requirement

from flows.doctor import checks
from tasks.doctor import machine, packages, services, store
from tasks.tracking import connect


def test_a_sound_installation(home):
    found = list(checks(home))
    assert [check.name for check in found if check.ok is False] == []
    names = [check.name for check in found]
    assert len(names) == len(set(names))
    assert {"Python", "packages", "disk", "memory", "home", "locks", "MLflow store", "Prefect server"} <= set(
        names
    )
    assert all(check.remedy for check in found if check.ok is False)


def test_a_home_that_cannot_be_written_is_a_finding(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("EVERGREEN_HOME", str(tmp_path / "file" / "home"))
    found = {check.name: check for check in checks()}
    assert found["home"].ok is False
    assert str(tmp_path / "file" / "home") in found["home"].found
    assert "Python" in found  # the rest still gets its turn
    assert "Prefect server" in found


def test_packages_are_held_against_the_pins():
    wanted = packages.declared()
    assert {"torch", "ray", "fastapi", "sqlalchemy"} <= {one.name for one in wanted.requirements}
    assert "pytest" not in {one.name for one in wanted.requirements}  # of an extra
    numpy = metadata.version("numpy")
    assert packages.requirement_check(Requirement(f"numpy=={numpy}")) is None
    assert packages.requirement_check(Requirement("torch==2.14.0")) is None  # installed may be 2.14.0+cu130
    wrong = packages.requirement_check(Requirement("fastapi<0.1"))
    assert wrong.ok is False
    assert "Prefect's server does not start" in wrong.found
    assert wrong.remedy == "pip install 'fastapi<0.1'"
    missing = packages.requirement_check(Requirement("no-such-package-at-all>=3"))
    assert (missing.ok, missing.found) == (False, "not installed; wanted is >=3")


def test_python_is_held_against_the_declared_range():
    assert packages.python_check(">=3.11").ok
    assert packages.python_check("<3.0").ok is False


@pytest.mark.parametrize(("free", "ok"), [(10e9, True), (4e9, None), (0.5e9, False)])
def test_disk_space(tmp_path, free, ok):
    check = machine.disk_check(tmp_path, int(free))
    assert check.ok is ok
    assert bool(check.remedy) == (ok is not True)


def test_limits_of_the_machine():
    assert machine.memory_check(8 * 10**9, 16 * 10**9).ok
    assert machine.memory_check(10**9, 16 * 10**9).ok is None
    assert [machine.cpu_check(cpus).ok for cpus in (1, 2)] == [None, True]
    assert [machine.shared_memory_check(size).ok for size in (64 << 20, 8 << 30)] == [None, True]
    limits = (256, 65536, resource.RLIM_INFINITY)
    assert [machine.open_files_check(limit).ok for limit in limits] == [False, True, True]


def test_a_ray_process_without_parent_is_noted(tmp_path):
    shutil.copy(shutil.which("sleep"), tmp_path / "raylet")
    started = subprocess.run(
        ["sh", "-c", f"{tmp_path}/raylet 60 >/dev/null 2>&1 & echo $!"],
        capture_output=True,
        text=True,
        check=True,
    )
    pid = int(started.stdout)
    try:
        if psutil.Process(pid).ppid() != 1:
            pytest.skip("orphans are not given to init here")
        check = machine.stray_check()
        assert check.ok is None
        assert f"raylet {pid} " in check.found
        assert str(pid) in check.remedy.split()
    finally:
        os.kill(pid, signal.SIGKILL)


@contextmanager
def held(file):
    """A lock that another process holds."""
    code = f"import filelock, time\nwith filelock.FileLock({str(file)!r}):\n print('held', flush=True)\n time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield
    process.kill()
    process.wait()


def test_runs_whose_process_is_gone(home):
    client = connect(None, home)
    experiment = client.create_experiment("digits")
    for recipe, status in (("digits", "RUNNING"), ("other", "FINISHED")):
        run = client.create_run(experiment, tags={"evergreen.recipe": recipe})
        client.update_run(run.info.run_id, status=status)

    def unfinished():
        return {
            check.name: check
            for check in store.embedded_store_checks(home)
            if check.name.startswith("run of")
        }

    assert unfinished().keys() == {"run of digits"}
    assert unfinished()["run of digits"].remedy.startswith("`evergreen retrain digits`")
    home.locks.mkdir(exist_ok=True)
    with held(home.locks / "run-digits.lock"):
        assert unfinished() == {}
    assert unfinished().keys() == {"run of digits"}


def test_the_store_is_read_and_left_alone(home):
    assert next(store.embedded_store_checks(home)).ok is None
    assert not (home.root / "mlflow.db").exists()
    client = connect(None, home)
    client.create_registered_model("digits")
    client.create_model_version("digits", source=str(home.root))
    client.set_registered_model_alias("digits", "champion", "1")
    before = (home.root / "mlflow.db").read_bytes()
    assert next(store.embedded_store_checks(home)).found == "1 models, 1 versions"
    assert (home.root / "mlflow.db").read_bytes() == before
    assert store.opened_store_check(home, None).found == 'digits {"champion": 1}'


def test_a_damaged_store_is_found(home):
    file = home.root / "mlflow.db"
    with sqlite3.connect(file) as made:
        made.execute("create table t (x)")
    [check] = store.embedded_store_checks(home)
    assert check.ok is False
    assert "no such table" in check.found
    file.write_bytes(b"no database " * 1000)
    [check] = store.embedded_store_checks(home)
    assert check.ok is False
    assert str(file) in check.found


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
def test_file_systems_are_told_apart():
    assert store.file_system(Path("/proc/self")) == "proc"


@contextmanager
def answering(body):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_an_mlflow_server(home):
    with answering(metadata.version("mlflow")) as uri:
        assert store.mlflow_server_check(uri).ok
        assert [check.name for check in store.store_checks(home, uri, deep=False)][-1] == "MLflow server"
    with answering("1.0") as uri:
        assert store.mlflow_server_check(uri).ok is None
    assert store.mlflow_server_check(uri).ok is False  # gone by now


def test_a_prefect_server_that_is_not_there_or_of_another_version():
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with answering('"2.0.0"') as uri, temporary_settings({PREFECT_API_URL: f"{uri}/api"}):
        check = services.prefect_check()
        assert (check.ok, check.found) == (False, f"{uri}/api answers, version 2.0.0")
    with temporary_settings({PREFECT_API_URL: f"{uri}/api"}):
        began = time.perf_counter()
        check = services.prefect_check()
        assert (check.ok, time.perf_counter() - began < 30) == (False, True)
        assert "prefect config unset" in check.remedy


@pytest.mark.usefixtures("prefect_harness")
def test_a_prefect_server_that_answers():
    assert services.prefect_check().ok


@pytest.mark.usefixtures("ray_session")
def test_ray_and_gpus():
    assert services.ray_check().ok
    assert services.gpu_check().ok is not False


def test_a_check_that_breaks_is_a_finding(home):
    (home.root / "mlflow.db").mkdir()
    (home.root / "locks").write_text("not a folder")
    found = {check.name: check for check in checks(home)}
    assert found["locks"].ok is False
    assert "Prefect server" in found
