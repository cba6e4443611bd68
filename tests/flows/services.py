"""The services of `deployments/systemd`, started as systemd would, but on free ports and in a temporary folder."""

import contextlib
import os
import secrets
import signal
import socket
import string
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deployments" / "systemd"
PROGRAMS = Path(sys.executable).parent
HEAD, NODE = "127.0.0.1", "127.0.0.2"  # two addresses, so that Ray treats them as two machines
_START_S = 120.0
_COMMAND_S = 400.0
_END_S = 5.0
_REAPED_S = 60.0


def free_port() -> int:
    """A port on which no process listens now."""
    with socket.create_server((HEAD, 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


def status(url: str) -> int:
    """HTTP status of a server's answer to an unauthenticated request."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def answers(url: str) -> bool:
    """Whether the server answers `url` with status 200."""
    try:
        return status(url) == 200
    except OSError:
        return False


class Services:
    """Starts the units' processes with a shared environment, and ends them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.home = folder / "home"
        self.ports = {name: free_port() for name in ("ray", "client", "mlflow", "prefect")}
        self.environment = self._environment()
        self._started: list[subprocess.Popen[bytes]] = []

    def _environment(self) -> dict[str, str]:
        """The environment of the units, with addresses and paths of the test in place of the example's."""
        token = self.folder / "token"
        token.write_text(secrets.token_hex(32))
        lines = (UNITS / "evergreen.env").read_text(encoding="utf-8").splitlines()
        example = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
        mine = {
            "EVERGREEN_HOME": str(self.home),
            "EVERGREEN_RAY_ADDRESS": f"{HEAD}:{self.ports['ray']}",
            "EVERGREEN_TRACKING_URI": f"http://{HEAD}:{self.ports['mlflow']}",
            "PREFECT_API_URL": f"http://{HEAD}:{self.ports['prefect']}/api",
            "RAY_AUTH_TOKEN_PATH": str(token),
        }
        assert mine.keys() <= example.keys()
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "RAY_"))
        }
        programs = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
        local = {
            "NO_PROXY": HEAD,
            "TMPDIR": str(self.folder),
            "PREFECT_HOME": str(self.folder / "prefect"),
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_AUTH_CONFIG_PATH": str(self._mlflow_users()),
        }
        return inherited | example | mine | local | {"PATH": programs, "PYTHONPATH": str(ROOT)}

    def _mlflow_users(self) -> Path:
        """The example's MLflow user file, with its database moved to the test's folder."""
        example = (UNITS / "evergreen-mlflow.ini").read_text(encoding="utf-8")
        file = self.folder / "mlflow.ini"
        file.write_text(example.replace("/var/lib/evergreen", str(self.folder)))
        return file

    def start(self, unit: str, **options: object) -> "subprocess.Popen[bytes]":
        """Run the unit's command; `options` override its own options. Returns its process."""
        lines = (UNITS / f"{unit}.service").read_text(encoding="utf-8").splitlines()
        (command,) = [line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart=")]
        words = [string.Template(word).substitute(self.environment) for word in command.split()]
        for name, value in options.items():
            option = "--" + name.replace("_", "-")
            if option in words:
                words[words.index(option) + 1] = str(value)
            else:
                words += [option, str(value)]
        with (self.folder / f"{unit}.log").open("wb") as said:
            process = subprocess.Popen(
                [str(PROGRAMS / Path(words[0]).name), *words[1:]],
                env=self.environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def wait_for(self, what: str, there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_S
        while not there():
            dead = [process.args for process in self._started if process.poll() is not None]
            assert not dead, f"ended while {what} was waited for: {dead}\n{self.logs()}"
            assert time.monotonic() < deadline, f"no {what}\n{self.logs()}"
            time.sleep(0.2)

    def prefect(self, *arguments: str) -> str:
        """Run a `prefect` command, which must succeed, and return its output."""
        command = [sys.executable, "-m", "prefect", *arguments]
        done = subprocess.run(
            command,
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_S,
        )
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}\n{self.logs()}"
        return done.stdout

    def logs(self) -> str:
        """The last 3,000 characters of each process's log."""
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"== {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def end(self) -> None:
        """End the processes started here and all their descendants, and no other process."""
        family = [psutil.Process(started.pid) for started in self._started if started.poll() is None]
        family += [child for parent in family for child in parent.children(recursive=True)]
        for started in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGTERM)
        _, alive = psutil.wait_procs(family, timeout=_END_S)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        _, left = psutil.wait_procs(family, timeout=_REAPED_S)
        assert not [
            process for process in left if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        ]
