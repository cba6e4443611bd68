"""CPU time and memory of a program and of all processes that it started, including daemons and orphans.

Ray's daemons become orphans when their starter ends. This process therefore asks the kernel to become the parent of
all orphans below it (`PR_SET_CHILD_SUBREAPER`), so that a walk down the process tree reaches them. A control group
would count more exactly, but needs permissions that a user may not have.
"""

import ctypes
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER in linux/prctl.h
_LOOK_S = 0.5
_END_S = 10.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20


class _Process(NamedTuple):
    parent: int
    started: int
    cpu_s: float


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)


@dataclass
class TreeMeter:
    """Measures all processes below this one during the block: `cpu_s`, and `peak_mb` of private memory.

    CPU time is the larger of two sums: each process's last sample, taken twice a second, or the kernel's total for
    children that were waited for. Shared and mapped memory is excluded, as it would count once per process. Processes
    that are left at the end are killed.
    """

    cpu_s: float = 0.0
    peak_mb: float = 0.0
    _seen: dict[tuple[int, int], float] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)
    _waited_before: float = 0.0

    def __enter__(self) -> Self:
        self._waited_before = _waited_for()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._look()
        end_descendants()
        self.cpu_s = max(sum(self._seen.values()), _waited_for() - self._waited_before)

    def _work(self) -> None:
        while not self._over.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        below = descendants()
        for pid, process in below.items():
            self._seen[pid, process.started] = process.cpu_s
        self.peak_mb = max(self.peak_mb, sum(map(_private_mb, below)))


def descendants() -> dict[int, _Process]:
    """All processes below this one, by process id."""
    every = {int(folder.name): stat for folder in _folders() if (stat := _read(folder)) is not None}
    children: dict[int, list[int]] = {}
    for pid, process in every.items():
        children.setdefault(process.parent, []).append(pid)
    below, queue = {}, [os.getpid()]
    while queue:
        for pid in children.get(queue.pop(), []):
            below[pid] = every[pid]
            queue.append(pid)
    return below


def end_descendants() -> None:
    """SIGKILL all processes below this one, and wait until they have ended."""
    deadline = time.monotonic() + _END_S
    while (left := descendants()) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        _reap()
        time.sleep(0.05)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _folders() -> list[Path]:
    return [folder for folder in Path("/proc").iterdir() if folder.name.isdigit()]


def _read(folder: Path) -> _Process | None:
    """Fields of proc_pid_stat(5): parent, user and system time in ticks, start time."""
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return _Process(int(fields[1]), int(fields[19]), (int(fields[11]) + int(fields[12])) / _TICKS)


def _private_mb(pid: int) -> float:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0.0
    return (int(pages[1]) - int(pages[2])) * _PAGE_MB


def _waited_for() -> float:
    times = os.times()
    return times.children_user + times.children_system
