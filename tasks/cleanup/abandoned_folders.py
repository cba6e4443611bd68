"""Find folders that killed runs left outside of a home: Ray sessions and temporary folders.

A run stops its Ray and removes its temporary folders itself, but not after SIGKILL or a loss of power. Only
folders of this user are considered. A folder is kept while the process that created it runs, identified by pid and
start time. A worker's folder is kept while its process holds the lock in it: the lock is right also when the clock was
set, or when the process runs in another container or on another machine that shares the temporary files. A Ray session
is also kept while any process has the session's name on its command line, as all processes of Ray do, and while its
logs change: Ray writes there every 10 s, on whichever machine.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import psutil

from training.ray_cluster.local_ray import sessions_folder
from training.storage.files import TEMPORARY_PREFIX
from training.storage.scratch import is_abandoned, temporaries

_SESSION = re.compile(r"session_(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\d{6})_(\d+)")
_STAMP = "%Y-%m-%d_%H-%M-%S_%f"
# As `temporary_folder` and Python's tempfile make the names; other folders may begin with the same word.
_TEMPORARY = re.compile(rf"{TEMPORARY_PREFIX}[a-z]+-(\d+)-[a-z0-9_]{{8}}")
_CLOCK_S = 5.0  # a process may appear to start later than the folder that it created
_CLOCK_CHANGE_S = 3600.0  # a session's name has local time, which daylight saving time shifts
_SILENT_S = 300.0
# Ray sessions that were not started by a run of Evergreen have at least one of these logs.
_OTHERS_LOGS = ("log_monitor.log", "log_monitor.out", "monitor.log", "dashboard.log")


class AbandonedFolder(NamedTuple):
    """A folder that no process uses any more, and the reason for that conclusion."""

    path: Path
    is_session: bool
    why: str


def abandoned_folders() -> Iterator[AbandonedFolder]:
    """Find the folders that killed runs of this user left outside of their homes."""
    in_use = _command_lines()
    # Ray's default folder for sessions; other programs and earlier versions of Evergreen use it.
    given = os.environ.get("RAY_TMPDIR")
    shared = [folder / "ray" for folder in ([Path(given)] if given else temporaries())]
    for folder in dict.fromkeys([sessions_folder(), *shared]):
        for path in _ours(folder, "session_*"):
            stamp = _SESSION.fullmatch(path.name)
            if stamp is None or any(path.name in line for line in in_use):
                continue
            made = datetime.strptime(stamp[1], _STAMP).timestamp() + _CLOCK_CHANGE_S
            if _runs(int(stamp[2]), made) or _is_written(path / "logs"):
                continue
            if folder not in shared or _is_of_a_run(path):
                yield AbandonedFolder(path, True, "its process is gone")
    for path in chain.from_iterable(_ours(folder, f"{TEMPORARY_PREFIX}*") for folder in temporaries()):
        match = _TEMPORARY.fullmatch(path.name)
        if match is not None and _is_left(path, int(match[1])):
            yield AbandonedFolder(path, False, "its process is gone")


def _ours(folder: Path, pattern: str) -> Iterator[Path]:
    """Folders (not links) of this user that match `pattern`; a folder that vanishes meanwhile is skipped."""
    for path in sorted(folder.glob(pattern)):
        with suppress(OSError):
            if path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.geteuid():
                yield path


def _is_left(folder: Path, pid: int) -> bool:
    """Whether no process uses a temporary folder: its lock says so, or without a lock the process `pid` in its name."""
    try:
        return is_abandoned(folder)
    except FileNotFoundError:
        return folder.is_dir() and not _runs(pid, time.time() - _age_s(folder))


def _is_written(logs: Path) -> bool:
    return any(_age_s(file) < _SILENT_S for file in logs.glob("*"))


def _age_s(path: Path) -> float:
    """Seconds since the last change; 0 for a path that its owner removes meanwhile."""
    with suppress(FileNotFoundError):
        return time.time() - path.stat().st_mtime
    return 0.0


def _runs(pid: int, made: float) -> bool:
    """Whether the process that created a folder at `made` (Unix time) still runs; a later process may reuse `pid`."""
    try:
        return psutil.Process(pid).create_time() <= made + _CLOCK_S
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # the process belongs to another user
        return True


def _command_lines() -> list[str]:
    lines = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            lines.append(" ".join(process.cmdline()))
    return lines


def _is_of_a_run(session: Path) -> bool:
    """Whether a run of Evergreen started this session, in a folder that other programs use, too."""
    logs = session / "logs"
    return (logs / "raylet.out").exists() and not any((logs / name).exists() for name in _OTHERS_LOGS)
