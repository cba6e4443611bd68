"""Resources of this machine that a process may use."""

import os


def available_cpus() -> int:
    """Number of CPUs that this process may use; a container or taskset can allow fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
