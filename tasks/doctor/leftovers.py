"""Processes that earlier runs of a home left behind: their parent process is gone, and no process will end them.

A process belongs to a home if its environment, or the environment of one of its ancestors, points to the home. Ray's
two agents (`ray::DashboardAgent`, `ray::RuntimeEnvAgent`) overwrite their environment; without their raylet as
ancestor, their home is unknown, but they end by themselves within minutes. The processes of a Ray cluster or of a
Prefect server that a user has started are not left over, even if their environment points to the home.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
from pydantic import Field

from tasks.doctor import Check
from training.ray_cluster.local_ray import sessions_folder
from training.records import Record
from training.storage.paths import HOME_VARIABLE, Home

# Set for each run of the command line (see flows/local/environment.py), and inherited by all its child processes.
_VARIABLES = (HOME_VARIABLE, "PREFECT_HOME", "MPLCONFIGDIR")
_PREFECT_SERVER = "flows.local.prefect_server"
_RAY_BINARIES = ("raylet", "gcs_server")
_RAY_SCRIPTS = ("/ray/_private/", "/ray/autoscaler/_private/", "/ray/dashboard/")
_TRAINING_WORKER = "ray::RayTrainWorker"
_SESSION = "/session_"  # in the commands of Ray's system processes
_INITS = ("systemd", "init", "tini", "dumb-init")


class Leftover(Record):
    """A process that an earlier run left behind."""

    pid: int
    kind: str = Field(description="Prefect server, Ray or training worker")
    age_s: float
    command: str


def leftovers(home: Home) -> tuple[Leftover, ...]:
    """Processes that runs of `home` left behind, oldest first.

    Processes of other users are left out, as their environment can't be read.
    """
    now, root = time.time(), home.root.resolve()
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # the process ended in the meantime, or is another user's
            kind = _kind(process)
            if kind and is_abandoned(process) and _belongs(process, root) and not _is_of_a_cluster(process):
                command = " ".join(process.cmdline())
                age_s = now - process.create_time()
                processes.append(Leftover(pid=process.pid, kind=kind, age_s=age_s, command=command))
    return tuple(sorted(processes, key=lambda leftover: -leftover.age_s))


def leftover_checks(home: Home) -> Iterator[Check]:
    """Check for processes that runs of this home left behind, then for Ray processes of another home or of none."""
    ours = leftovers(home)
    yield leftover_check(ours)
    yield stray_check({process.pid for process in ours})


def leftover_check(processes: tuple[Leftover, ...]) -> Check:
    """One check for all left-over processes."""
    if not processes:
        return Check(name="left-over processes", ok=True, found="none from earlier runs of this home")
    listed = ", ".join(
        f"{process.kind} {process.pid} ({process.age_s / 60:.0f} min)" for process in processes
    )
    remedy = "The command that started these processes has ended. End the processes: kill " + " ".join(
        str(process.pid) for process in processes
    )
    return Check(name="left-over processes", ok=None, found=listed, remedy=remedy)


def stray_check(known: set[int]) -> Check:
    """Check for Ray processes without a parent, except `known`.

    Such processes belong to a cluster that was started on purpose, or to a killed run.
    """
    descriptions: dict[int, str] = {}
    for process in stray_processes():
        with suppress(psutil.Error):  # the process ended in the meantime
            if process.pid not in known:
                age_s = time.time() - process.create_time()
                descriptions[process.pid] = f"{process.name()} {process.pid} ({age_s / 60:.0f} min)"
    if not descriptions:
        return Check(name="Ray processes", ok=True, found="none left over")
    listed = ", ".join(descriptions.values())
    remedy = "If no Ray cluster should run here, end these processes: kill " + " ".join(
        map(str, descriptions)
    )
    return Check(name="Ray processes", ok=None, found=f"without a parent: {listed}", remedy=remedy)


def stray_processes() -> list[psutil.Process]:
    """Ray's system processes (raylet, GCS server) of this user whose parent is gone."""
    me = psutil.Process().username()
    processes = []
    for process in psutil.process_iter(["name", "username"]):
        with suppress(psutil.Error):
            if (
                process.info["username"] == me
                and process.info["name"] in _RAY_BINARIES
                and is_abandoned(process)
            ):
                processes.append(process)
    return processes


def is_abandoned(process: psutil.Process) -> bool:
    """Whether no process is left that would end `process`.

    That is so when its nearest ancestor that is no helper of a run is an init process, or when there is none.
    """
    parent = process.parent()
    while parent is not None and _kind(parent):
        parent = parent.parent()
    if parent is None:
        return True
    # In a container, the run itself can have PID 1; that process is Python and not an init.
    with suppress(psutil.AccessDenied):
        if Path(parent.exe()).name.startswith("python"):
            return False
    return parent.pid == 1 or parent.name() in _INITS


def _kind(process: psutil.Process) -> str:
    """Which kind of helper of a run `process` is; empty for any other process. Raises :class:`psutil.Error`."""
    if process.name() in _RAY_BINARIES:
        return "Ray"
    command = " ".join(process.cmdline())
    if command.startswith(_TRAINING_WORKER):
        return "training worker"
    if command.startswith("ray::") or any(script in command for script in _RAY_SCRIPTS):
        return "Ray"
    return "Prefect server" if _PREFECT_SERVER in command else ""


def _is_of_a_cluster(process: psutil.Process) -> bool:
    """Whether `process` or an ancestor has a session of Ray that is not in the folder of Evergreen's local runs."""
    commands = [" ".join(ancestor.cmdline()) for ancestor in (process, *process.parents())]
    ours = f"/{sessions_folder().parent.name}/"
    return any(_SESSION in command and ours not in command for command in commands)


def _belongs(process: psutil.Process, root: Path) -> bool:
    """Whether `process` or one of its ancestors was started for the home at `root`."""
    return any(_points_to(ancestor, root) for ancestor in (process, *process.parents()))


def _points_to(process: psutil.Process, root: Path) -> bool:
    with suppress(psutil.Error, RuntimeError):  # RuntimeError: `~NAME` of an unknown user
        environment = process.environ()
        paths = [Path(environment[name]).expanduser() for name in _VARIABLES if environment.get(name)]
        # Relative paths are relative to the working directory of the process.
        return any(Path(process.cwd(), path).resolve().is_relative_to(root) for path in paths)
    return False
