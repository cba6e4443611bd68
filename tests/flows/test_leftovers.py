"""Processes left by a killed run are found, distinguished from others, and ended by the suggested command."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress

import psutil
import pytest

from tasks.doctor import leftovers


@contextmanager
def orphan(command, **variables):
    """Start a process whose parent has ended; returns its pid."""
    started = subprocess.run(
        ["sh", "-c", f"{command} >/dev/null 2>&1 & echo $!"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | variables,
    )
    pid = int(started.stdout)
    try:
        if psutil.Process(pid).ppid() != 1:
            pytest.skip("orphans are not given to init here")
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


SLEEP = f"exec {sys.executable} -c 'import time; time.sleep(60)'"
SERVER = f"{SLEEP} -m flows.local.prefect_server prefect.server.api.server:create_app"


def test_a_ray_process_without_parent_is_noted(tmp_path):
    shutil.copy(shutil.which("sleep"), tmp_path / "raylet")
    with orphan(f"{tmp_path}/raylet 60") as pid:
        check = leftovers.stray_check(set())
        assert check.ok is None
        assert f"raylet {pid} " in check.found
        assert str(pid) in check.remedy.split()
        assert str(pid) not in leftovers.stray_check({pid}).found


def test_a_tilde_that_no_shell_replaced_is_a_home_directory(home, monkeypatch):
    monkeypatch.setenv("HOME", str(home.root.parent))
    with (
        orphan(SERVER, EVERGREEN_HOME="~/home") as server,
        orphan(SERVER, EVERGREEN_HOME="~no-such-user/home", PREFECT_HOME="/no/home/prefect"),
    ):
        assert {process.pid for process in leftovers.leftovers(home)} == {server}


def test_processes_left_behind_by_runs_of_this_home(home):
    shutil.copy(shutil.which("sleep"), home.root / "raylet")
    with (
        orphan(SERVER, EVERGREEN_HOME="", PREFECT_HOME=str(home.prefect)) as server,
        orphan(f"cd {home.root.parent} && exec {home.root}/raylet 60", EVERGREEN_HOME="home") as ray,
        orphan(SERVER, EVERGREEN_HOME=f"{home.root}-2", PREFECT_HOME="/no/home/prefect") as elsewhere,
        orphan(f"{SLEEP} a run itself", EVERGREEN_HOME=str(home.root)) as no_helper,
    ):
        processes = {process.pid: process for process in leftovers.leftovers(home)}
        assert processes.keys() == {server, ray}
        assert (processes[server].kind, processes[ray].kind) == ("Prefect server", "Ray")
        assert 0 <= processes[server].age_s < 60
        assert processes[ray].command == f"{home.root}/raylet 60"
        [ours, others] = leftovers.leftover_checks(home)
        assert ours.ok is None
        assert f"Prefect server {server} (0 min)" in ours.found
        assert f"raylet {ray} " not in others.found
        command = ours.remedy.partition(": ")[2]
        assert command.split()[0] == "kill"
        ended = [psutil.Process(pid) for pid in (server, ray)]
        subprocess.run(["sh", "-c", command], check=True)
        _, left = psutil.wait_procs(ended, 120)
        assert left == []
        assert leftovers.leftovers(home) == ()
        assert next(leftovers.leftover_checks(home)).ok
        assert psutil.pid_exists(elsewhere)
        assert psutil.pid_exists(no_helper)


def test_helper_processes_of_an_active_run_are_not_listed(home):
    shutil.copy(shutil.which("sleep"), home.root / "raylet")
    with subprocess.Popen(
        [home.root / "raylet", "60"], env=os.environ | {"EVERGREEN_HOME": str(home.root)}
    ) as ray:
        try:
            assert leftovers.leftovers(home) == ()
        finally:
            ray.kill()


def test_servers_that_a_user_started_are_not_left_over(home):
    """A cluster by `ray start`, and Prefect's server, in a shell with EVERGREEN_HOME."""
    shutil.copy(shutil.which("sh"), home.root / "raylet")
    raylet = (
        f"exec {home.root}/raylet -c 'sleep 60; true' raylet --session-dir=/tmp/ray{{}}/session_2026-01-01_1"
    )
    with (
        orphan(f"{SLEEP} prefect.server.api.server:create_app", EVERGREEN_HOME=str(home.root)),
        orphan(raylet.format(""), EVERGREEN_HOME=str(home.root)),
        orphan(raylet.format(f"-evergreen-{os.geteuid()}/ray"), EVERGREEN_HOME=str(home.root)) as ours,
    ):
        assert [process.pid for process in leftovers.leftovers(home)] == [ours]


def test_a_process_that_ends_while_it_is_described_is_left_out(monkeypatch):
    ended = subprocess.Popen(["sleep", "60"])
    process = psutil.Process(ended.pid)
    ended.kill()
    ended.wait()
    monkeypatch.setattr(leftovers, "stray_processes", lambda: [process])
    assert leftovers.stray_check(set()).ok
