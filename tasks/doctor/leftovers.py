"""Processes that earlier runs of a home left behind: what started them is gone, and nobody ends them any more.

A process belongs to a home if its environment, or that of a process above it, points there. Ray's two agents
(`ray::DashboardAgent`, `ray::RuntimeEnvAgent`) overwrite their environment; without the raylet above them they can't
be told apart, and end by themselves within minutes.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
from pydantic import Field

from tasks.doctor import Check
from training.records import Record
from training.storage.paths import HOME_VARIABLE, Home

# Set for each run of the command line (see flows/local/environment.py), and inherited by all that it starts.
_VARIABLES = (HOME_VARIABLE, "PREFECT_HOME", "MPLCONFIGDIR")
_PREFECT_SERVER = "prefect.server.api.server:create_app"
_RAY_BINARIES = ("raylet", "gcs_server")
_RAY_SCRIPTS = ("/ray/_private/", "/ray/autoscaler/_private/", "/ray/dashboard/")
_TRAINING_WORKER = "ray::RayTrainWorker"
_INITS = ("systemd", "init", "tini", "dumb-init")


class Leftover(Record):
    """A process that an earlier run left behind."""

    pid: int
    kind: str = Field(description="Prefect server, Ray or training worker")
    age_s: float
    command: str


def leftovers(home: Home) -> tuple[Leftover, ...]:
    """What runs of `home` left behind, oldest first. Processes of other users can't be looked into and are left out."""
    now, root = time.time(), home.root.resolve()
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it ended meanwhile, or is another user's
            kind = _kind(process)
            if kind and is_abandoned(process) and _belongs(process, root):
                command = " ".join(process.cmdline())
                age_s = now - process.create_time()
                found.append(Leftover(pid=process.pid, kind=kind, age_s=age_s, command=command))
    return tuple(sorted(found, key=lambda one: -one.age_s))


def leftover_checks(home: Home) -> Iterator[Check]:
    """What runs of this home left behind, then Ray processes of this user that belong to another home or to none."""
    ours = leftovers(home)
    yield leftover_check(ours)
    yield stray_check({one.pid for one in ours})


def leftover_check(found: tuple[Leftover, ...]) -> Check:
    """One line for all of them."""
    if not found:
        return Check(name="left-over processes", ok=True, found="none of earlier runs of this home")
    listed = ", ".join(f"{one.kind} {one.pid} ({one.age_s / 60:.0f} min)" for one in found)
    remedy = "What started them is gone. End them: kill " + " ".join(str(one.pid) for one in found)
    return Check(name="left-over processes", ok=None, found=listed, remedy=remedy)


def stray_check(known: set[int]) -> Check:
    """Ray processes without a parent, apart from `known`: a cluster started on purpose, or the rest of a killed run."""
    found = [one for one in stray_processes() if one.pid not in known]
    if not found:
        return Check(name="Ray processes", ok=True, found="none left over")
    now = time.time()
    listed = ", ".join(f"{one.name()} {one.pid} ({(now - one.create_time()) / 60:.0f} min)" for one in found)
    remedy = "If no Ray cluster should run here, end them: kill " + " ".join(str(one.pid) for one in found)
    return Check(name="Ray processes", ok=None, found=f"without a parent: {listed}", remedy=remedy)


def stray_processes() -> list[psutil.Process]:
    """Ray's own processes of this user whose parent is gone."""
    me = psutil.Process().username()
    everything = psutil.process_iter(["name", "username"])
    ours = [one for one in everything if one.info["username"] == me and one.info["name"] in _RAY_BINARIES]
    return [one for one in ours if is_abandoned(one)]


def is_abandoned(process: psutil.Process) -> bool:
    """Whether nobody is left who would end `process`: it, or the Ray above it, was handed to init."""
    parent = process.parent()
    while parent is not None and _kind(parent):
        parent = parent.parent()
    if parent is None:
        return True
    # A run can be the first process of a container; it is Python then, and no init.
    with suppress(psutil.AccessDenied):
        if Path(parent.exe()).name.startswith("python"):
            return False
    return parent.pid == 1 or parent.name() in _INITS


def _kind(process: psutil.Process) -> str:
    """What `process` is of a run; empty for what is none of its helpers. Raises :class:`psutil.Error`."""
    if process.name() in _RAY_BINARIES:
        return "Ray"
    command = " ".join(process.cmdline())
    if command.startswith(_TRAINING_WORKER):
        return "training worker"
    if command.startswith("ray::") or any(script in command for script in _RAY_SCRIPTS):
        return "Ray"
    return "Prefect server" if _PREFECT_SERVER in command else ""


def _belongs(process: psutil.Process, root: Path) -> bool:
    """Whether `process`, or one above it, was started for the home at `root`."""
    return any(_points_to(one, root) for one in (process, *process.parents()))


def _points_to(process: psutil.Process, root: Path) -> bool:
    with suppress(psutil.Error):
        environment = process.environ()
        places = [environment[name] for name in _VARIABLES if environment.get(name)]
        # What is relative was meant from the folder that it works in.
        return any(Path(process.cwd(), place).resolve().is_relative_to(root) for place in places)
    return False
