"""A run's cluster admits only clients with its token, and listens only to this machine where Ray allows that."""

import http.client
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psutil
import pytest

from training.errors import ResourceError
from training.ray_cluster import local_ray
from training.ray_cluster.local_ray import sessions_folder
from training.settings.schema import RaySettings

_CLUSTER = """
import os, sys
from training.ray_cluster.cluster import ray_cluster
from training.settings.schema import Settings

with ray_cluster(Settings.model_validate({"ray": {"num_cpus": 1}})):
    import ray
    print(ray.get_runtime_context().gcs_address, os.environ["RAY_AUTH_TOKEN"], flush=True)
    sys.stdin.readline()
"""
_CLIENT = """
import sys, ray

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
print("in", ray.get(ray.remote(num_cpus=0)(lambda: 41).remote()) + 1)
"""


class Cluster(NamedTuple):
    """A run's own cluster, started in another process."""

    address: str
    token: str
    processes: list[psutil.Process]

    @property
    def listening(self) -> dict[tuple[str, int], str]:
        """Addresses at which the cluster's processes listen, and the name of each process."""
        listeners = {}
        for process in self.processes:
            with suppress(psutil.NoSuchProcess):
                for connection in process.net_connections("tcp"):
                    if connection.status == psutil.CONN_LISTEN:
                        listeners[connection.laddr.ip, connection.laddr.port] = process.name()
        return listeners

    @property
    def command_lines(self) -> list[str]:
        """Command lines of the cluster's processes."""
        lines = []
        for process in self.processes:
            with suppress(psutil.NoSuchProcess):
                lines.append(" ".join(process.cmdline()))
        return lines


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    process = subprocess.Popen(
        [sys.executable, "-c", _CLUSTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    address, token = process.stdout.readline().split()
    yield Cluster(address, token, psutil.Process(process.pid).children(recursive=True))
    process.communicate("\n", timeout=60)


def attempt(program: str, address: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Try to connect from a process without the run's environment."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    given["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # or Ray uses the machine's external address
    command = [sys.executable, "-c", program, address]
    return subprocess.run(
        command, env=given | environment, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.slow
def test_who_has_the_token_gets_in(cluster: Cluster) -> None:
    done = attempt(_CLIENT, cluster.address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=cluster.token)
    assert done.stdout.strip() == "in 42", done.stderr


@pytest.mark.extended
def test_who_has_not_does_not(cluster: Cluster) -> None:
    without = {"RAY_AUTH_MODE": "disabled"}
    wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    with ThreadPoolExecutor() as pool:  # each attempt takes 20 s
        tries = [pool.submit(attempt, _CLIENT, cluster.address, **given) for given in (without, wrong)]
    for future in tries:
        done = future.result()
        assert (done.returncode == 0, "in 42" in done.stdout) == (False, False)


def test_nothing_takes_jobs(cluster: Cluster) -> None:
    """Jobs are submitted to the dashboard, which is not running, and no other port answers such a request."""
    answers = {f"{name}:{port}": answer_to_jobs(port) for (_, port), name in cluster.listening.items()}
    assert len(answers) > 3
    assert {name: answer for name, answer in answers.items() if answer.startswith(("[", "{"))} == {}
    assert "ray::DashboardHead" not in cluster.listening.values()


def answer_to_jobs(port: int) -> str:
    """A local port's answer to a request for the list of jobs; "" for a refusal or a port without HTTP."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/api/jobs/")
        answer = connection.getresponse()
        return answer.read().decode(errors="replace") if answer.status == 200 else ""
    except (http.client.HTTPException, OSError):
        return ""
    finally:
        connection.close()


def test_the_token_stands_on_no_command_line(cluster: Cluster) -> None:
    """Any user of the machine can read command lines."""
    lines = cluster.command_lines
    assert len(lines) > 3
    assert [line for line in lines if cluster.token in line] == []


def test_no_other_user_may_enter_its_folders(cluster: Cluster) -> None:
    """Ray creates the folders with open permissions, but a folder above them is closed to others."""
    named = [re.search(r"--raylet_socket_name=(\S+)", line) for line in cluster.command_lines]
    (socket,) = {Path(match[1]) for match in named if match}
    assert socket.exists()
    assert any(folder.stat().st_mode & 0o077 == 0 for folder in socket.parents)
    assert sessions_folder() in socket.parents


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder with a path short enough for Unix sockets in it."""
    with TemporaryDirectory(prefix="ray-") as made:
        yield Path(made)


def test_a_folder_that_somebody_else_may_have_made_is_not_used(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(short_path))
    folder = sessions_folder().parent
    assert folder.parent == short_path
    (short_path / "elsewhere").mkdir()
    folder.symlink_to(short_path / "elsewhere")
    with pytest.raises(ResourceError, match="a link, a file, or a folder of another user"):
        local_ray.start_own(RaySettings())
    folder.unlink()
    folder.mkdir(mode=0o777)
    local_ray._make_private(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_sockets_have_short_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / ("long" * 20)))
    assert sessions_folder().parent.parent == Path("/tmp")


def test_only_this_machine_is_listened_to(cluster: Cluster) -> None:
    open_to_others = {
        f"{name} on {host}:{port}"
        for (host, port), name in cluster.listening.items()
        if host.removeprefix("::ffff:") not in ("127.0.0.1", "::1")
    }
    assert open_to_others == set()
