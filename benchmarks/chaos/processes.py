"""Find the processes of a trial, by environment or parent, and kill them."""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from training.attempts.heartbeat import Beat, read_beats
from training.machine import process_start
from training.storage.paths import RunPaths

_END_TIMEOUT_S = 20.0


def with_environment(name: str, value: str) -> list[psutil.Process]:
    """Processes that were started with `name=value` in their environment, and their descendants; not this process."""
    wanted = f"{name}={value}".encode()
    processes_by_pid: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        if (
            process.pid == os.getpid()
            or process.pid in processes_by_pid
            or wanted not in _environment(process)
        ):
            continue
        processes_by_pid |= {member.pid: member for member in (process, *_descendants(process))}
    return list(processes_by_pid.values())


def _environment(process: psutil.Process) -> list[bytes]:
    # psutil's parser fails here: a process that changed its title has overwritten parts of its environment.
    try:
        return Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        descendants: list[psutil.Process] = process.children(recursive=True)
    except psutil.Error:
        return []
    return descendants


def named(processes: Iterable[psutil.Process], name: str) -> list[psutil.Process]:
    """The running processes whose program or title contains `name`."""
    return [process for process in processes if name in _title(process) and is_alive(process)]


def _title(process: psutil.Process) -> str:
    """The program's name, or the title that the process set itself, as Ray's workers do."""
    try:
        return next(iter(process.cmdline()), "")
    except psutil.Error:
        return ""


def is_alive(process: psutil.Process) -> bool:
    """Whether the process still runs; a zombie does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def end_all(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL the processes and wait until they have ended."""
    for process in (victims := list(processes)):
        send(process.pid, 9)
    psutil.wait_procs(victims, _END_TIMEOUT_S)


def send(pid: int, signum: int) -> bool:
    """Send a signal; returns whether the process existed."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    return True


def beating(paths: RunPaths) -> list[Beat]:
    """The last heartbeats of workers that still run, in order of rank."""
    alive = []
    for beat in read_beats(paths):
        try:
            process = psutil.Process(beat.pid)
            if process_start(beat.pid) == beat.process_start and is_alive(process):
                alive.append(beat)
        except psutil.Error:
            continue
    return sorted(alive, key=lambda beat: beat.rank)


def wait_until(condition: Callable[[], bool], seconds: float, pause_s: float = 0.02) -> bool:
    """Poll until `condition` is true; returns False if it is not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
    return True
