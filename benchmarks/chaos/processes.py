"""Processes of a trial: found by what stands in their environment or by their parents, and ended for good."""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from training.attempts.heartbeat import Beat, read_beats
from training.storage.paths import RunPaths

_END_TIMEOUT_S = 20.0


def with_environment(name: str, value: str) -> list[psutil.Process]:
    """Processes that were started with `name=value`, and all their descendants; not this one."""
    wanted = f"{name}={value}".encode()
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        if process.pid == os.getpid() or process.pid in found or wanted not in _environment(process):
            continue
        found |= {one.pid: one for one in (process, *_descendants(process))}
    return list(found.values())


def _environment(process: psutil.Process) -> list[bytes]:
    # Not psutil's parser: a process that changed its title has overwritten parts of it.
    try:
        return Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = process.children(recursive=True)
    except psutil.Error:
        return []
    return found


def named(processes: Iterable[psutil.Process], name: str) -> list[psutil.Process]:
    """Those whose program or title contains `name`, and that run."""
    return [one for one in processes if name in _title(one) and is_alive(one)]


def _title(process: psutil.Process) -> str:
    """The program's name, or what the process calls itself, as Ray's workers do."""
    try:
        return next(iter(process.cmdline()), "")
    except psutil.Error:
        return ""


def is_alive(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def end_all(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL, and wait until they are gone."""
    for process in (victims := list(processes)):
        send(process.pid, 9)
    psutil.wait_procs(victims, _END_TIMEOUT_S)


def send(pid: int, signum: int) -> bool:
    """Send a signal; whether there was a process to get it."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    return True


def beating(paths: RunPaths) -> list[Beat]:
    """Last signs of life of workers that still run, in order of rank."""
    alive = []
    for beat in read_beats(paths):
        try:
            process = psutil.Process(beat.pid)
            if abs(process.create_time() - beat.started) <= 1 and is_alive(process):
                alive.append(beat)
        except psutil.Error:
            continue
    return sorted(alive, key=lambda beat: beat.rank)


def wait_until(condition: Callable[[], bool], seconds: float, pause_s: float = 0.02) -> bool:
    """Whether `condition` came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
    return True
