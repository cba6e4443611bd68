"""Checks of the machine: disks, memory, CPUs, shared memory and the limit of open files."""

import resource
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tasks.doctor import Check
from training.machine import available_cpus
from training.ray_cluster.local_ray import sessions_folder
from training.storage.scratch import temporaries

_GB = 1e9
_DISK_LOW, _DISK_TOO_LOW = 5 * _GB, 1 * _GB
_RAY_FULL = 0.95  # Ray writes no objects to a disk with a larger share in use
_MEMORY_LOW = 2 * _GB
_SHM_LOW = 1 * _GB
_FILES_LOW = 1024
_SHM = Path("/dev/shm")
_CGROUP = Path("/sys/fs/cgroup")
# Of both versions of cgroups: limit, memory in use, and the part of it that is cache which the kernel can drop.
_CONTAINER_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)


def machine_checks(home: Path) -> Iterator[Check]:
    """All checks of this machine; they take milliseconds."""
    yield disk_check(home, shutil.disk_usage(home).free)
    yield from map(temporary_disk_check, _temporary_folders())
    memory = psutil.virtual_memory()
    container = list(container_memory(_CGROUP))
    limit = min([memory.total, *(cgroup.limit for cgroup in container)])
    yield memory_check(min([memory.available, limit, *(cgroup.free for cgroup in container)]), limit)
    yield cpu_check(available_cpus())
    if _SHM.is_dir():
        yield shared_memory_check(shutil.disk_usage(_SHM).total)
    yield open_files_check(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _temporary_folders() -> list[Path]:
    """The folders of temporary files and of Ray's sessions; of two on the same disk, the latter."""
    sessions = next(folder for folder in sessions_folder().parents if folder.is_dir())
    return list({folder.stat().st_dev: folder for folder in (*temporaries(), sessions)}.values())


def disk_check(home: Path, free: int) -> Check:
    """Check the free space for datasets, checkpoints and models; `free` is in bytes."""
    ok = False if free < _DISK_TOO_LOW else None if free < _DISK_LOW else True
    remedy = (
        "" if ok else f"Free disk space, or set EVERGREEN_HOME to a folder on a larger disk (now {home})."
    )
    return Check(name="disk", ok=ok, found=f"{free / _GB:.1f} GB free at {home}", remedy=remedy)


def temporary_disk_check(folder: Path) -> Check:
    """Check the disk of temporary files, where Ray keeps its sessions and spilled objects."""
    usage = shutil.disk_usage(folder)
    share = usage.used / max(1, usage.used + usage.free)
    full = share > _RAY_FULL
    return Check(
        name="temporary files",
        ok=not full,
        found=f"{folder} is {share:.0%} full",
        remedy="Free disk space: above 95%, Ray stops writing there and waits." if full else "",
    )


def memory_check(free: int, limit: int) -> Check:
    """Check the memory that a run can use, in bytes; `limit` includes a container's limit."""
    enough = free >= _MEMORY_LOW
    return Check(
        name="memory",
        ok=True if enough else None,
        found=f"{free / _GB:.1f} GB free of {limit / _GB:.1f} GB",
        remedy=""
        if enough
        else "Close other programs, or lower scaling.num_workers: each worker needs about 1 GB.",
    )


def cpu_check(cpus: int) -> Check:
    """Check the number of CPUs of this process; recipes train on two workers by default."""
    remedy = "" if cpus > 1 else "Train with scaling.num_workers=1, or 0 to train without Ray."
    return Check(name="CPUs", ok=True if cpus > 1 else None, found=str(cpus), remedy=remedy)


def shared_memory_check(size: int) -> Check:
    """Check the size of shared memory, which holds Ray's object store; a container has 64 MB of it by default."""
    small = size < _SHM_LOW
    return Check(
        name="shared memory",
        ok=None if small else True,
        found=f"{size / _GB:.1f} GB at {_SHM}",
        remedy="Ray falls back to the disk, which is slow: start the container with --shm-size=2g."
        if small
        else "",
    )


def open_files_check(limit: int) -> Check:
    """Check the limit of open files: Ray and MLflow keep hundreds of files and sockets open."""
    unlimited = limit == resource.RLIM_INFINITY
    ok = unlimited or limit >= _FILES_LOW
    remedy = "" if ok else "Raise the limit before a run: ulimit -n 65536"
    return Check(
        name="open files", ok=ok, found="no limit" if unlimited else f"at most {limit}", remedy=remedy
    )


@dataclass(frozen=True)
class ContainerMemory:
    """Bytes that the processes of a container may use, and how many of them are free."""

    limit: int
    free: int


def container_memory(folder: Path) -> Iterator[ContainerMemory]:
    """The limits of memory in the folder `folder` of the kernel's control groups; none outside of a container."""
    for limit_file, used_file, stat_file, cache in _CONTAINER_FILES:
        file = folder / limit_file
        if not file.is_file() or not (text := file.read_text().strip()).isdigit():
            continue
        limit, used = int(text), 0
        with suppress(OSError, ValueError):
            used = int((folder / used_file).read_text())
            numbers = dict(line.split() for line in (folder / stat_file).read_text().splitlines())
            used -= int(numbers.get(cache, 0))
        yield ContainerMemory(limit, max(0, limit - used))
