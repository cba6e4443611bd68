"""What this machine offers to a process."""

import os


def available_cpus() -> int:
    """CPUs that this process may use, which a container or taskset can make fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
