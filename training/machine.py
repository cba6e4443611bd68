"""This machine: the CPUs that a process may use, and when a process started."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_GROUPS = Path("/sys/fs/cgroup")  # where Linux shows the control groups
_OWN_GROUPS = Path("/proc/self/cgroup")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_START = 19  # position of a process's start in its `stat`, counted from the field after the name


def available_cpus() -> int:
    """Number of CPUs that this process may use; a container or taskset can allow fewer than the machine has.

    The quota of CPU time of a control group, such as Docker's `--cpus` or a limit of Kubernetes, is rounded down.
    """
    # Python's functions do not read the quota. Joblib's reads only that of the outermost group, and rounds it up.
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cpus, *map(int, _quotas())]))


def _quotas() -> Iterator[float]:
    """CPUs that the control groups of this process allow: the process's own group and the groups around it."""
    for folder in _folders():
        quota = _numbers(folder / "cpu.max") or [
            *_numbers(folder / "cpu.cfs_quota_us"),
            *_numbers(folder / "cpu.cfs_period_us"),
        ]
        if len(quota) == 2 and min(quota) > 0:
            yield quota[0] / quota[1]


def _folders() -> Iterator[Path]:
    """Folders of the control groups that may limit this process's CPU time.

    In a container, the path of this process's group may exist on the host alone; its files are at the root.
    """
    for line in _text(_OWN_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = PurePosixPath(path.lstrip("/"))
        for root in (_GROUPS / controllers, _GROUPS / "cpu") if controllers else (_GROUPS,):
            yield from (root / part for part in (group, *group.parents))


def _numbers(file: Path) -> list[int]:
    """The whole numbers in a file; none if the file is missing or has `max`: no limit."""
    words = _text(file).split()
    return [int(word) for word in words] if "max" not in words else []


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""


def process_start(pid: int) -> str | None:
    """When the process `pid` started: the id of the machine's boot, and clock ticks since; None without such a process.

    This text never changes, and no other process with this pid has it. psutil's start time, in contrast, changes when
    the machine's clock is set.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return f"{_text(_BOOT).strip()}/{fields.split()[_START]}"
