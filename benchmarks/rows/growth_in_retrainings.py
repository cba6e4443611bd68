"""P14, again: twenty retrainings in one process; the last ones must cost no more than the first ones.

Twenty retrainings without Ray, so that any growth comes from Evergreen, Prefect or MLflow, and twelve with two
workers each on one cluster that stays up. Memory, open files and processes are those of this process and of all its
children: Prefect's server, and the cluster.
"""

import gc
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.harness.row import Claim, Outcome, Row, Workspace

_HERE, _ON_A_CLUSTER = 20, 12
_COMPARED = 5  # the first and the last five are compared, after two for warm-up
_WARM = 2


def here(workspace: Workspace) -> Outcome:
    """Repeat the flow in this process, each time with another seed."""
    return _retrainings(workspace, workspace.pick(_HERE, 14, 12), workers=0)


def on_a_cluster(workspace: Workspace) -> Outcome:
    """Repeat the flow with two workers on one cluster that this process has started."""
    return _retrainings(workspace, _ON_A_CLUSTER, workers=2)


def _retrainings(workspace: Workspace, count: int, workers: int) -> Outcome:
    home = workspace.own / "home"
    os.environ["EVERGREEN_HOME"] = str(home)
    from flows.local.environment import prepare
    from flows.local.prefect_server import prefect_api
    from training.ray_cluster.cluster import ray_cluster
    from training.settings.schema import Settings
    from training.storage.paths import Home

    os.environ.pop("PREFECT_HOME", None)
    prepare(Home(home))
    seen: dict[str, list[float]] = {"s": [], "mb": [], "files": [], "processes": [], "disk": []}
    cluster: Any = (
        ray_cluster(Settings.model_validate({"ray": {"num_cpus": 2}})) if workers else nullcontext()
    )
    with prefect_api(Home(home)), cluster:
        for seed in range(count):
            before, began = _disk_mb(home), time.perf_counter()
            _retrain(seed, workers)
            seen["s"].append(time.perf_counter() - began)
            gc.collect()
            tree = _tree()
            seen["mb"].append(sum(process.mb for process in tree))
            seen["files"].append(float(sum(process.files for process in tree)))
            seen["processes"].append(float(len(tree)))
            seen["disk"].append(_disk_mb(home) - before)
    early = {f"early_{name}": list(values[_WARM : _WARM + _COMPARED]) for name, values in seen.items()}
    late = {f"late_{name}": list(values[-_COMPARED:]) for name, values in seen.items()}
    return Outcome(early | late)


class _Process(NamedTuple):
    mb: float
    files: int


def _tree() -> list[_Process]:
    """This process and all its children, without those that end meanwhile."""
    processes = []
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            processes.append(_Process(process.memory_info().rss / 2**20, process.num_fds()))
        # A process that has ended lets nobody read its files.
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return processes


def _disk_mb(folder: Path) -> float:
    """Disk space that the files in `folder` occupy, in MiB."""
    return sum(file.lstat().st_blocks * 512 for file in folder.rglob("*")) / 2**20


def _retrain(seed: int, workers: int) -> None:
    from flows.local.environment import quieten
    from flows.retrain import retrain

    quieten()
    overrides = {
        "seed": seed,
        "training": {"epochs": 1},
        "scaling": {"num_workers": workers, "use_gpu": "no"},
        "ray": {"num_cpus": 2},
        "data": {"max_train_rows": 400, "max_test_rows": 100},
        "gate": {"floor": 0.0},
        "tracking": {"system_metrics": False},
    }
    release = retrain("digits", overrides)
    if release.reused:
        raise RuntimeError(f"the retraining with seed {seed} reused a finished run")


def _claim(row: str, where: str, name: str, what: str, unit: str, goal: float) -> Claim:
    return Claim(
        f"{row}-{name}",
        f"{what}, last {_COMPARED} of {where} / first {_COMPARED}",
        of=f"late_{name}",
        of_b=f"early_{name}",
        unit=unit,
        goal=goal,
        at_least=False,
        b="a",
        note=f"the mean of {_COMPARED} retrainings of a process is one observation",
    )


def _row(
    row: str, where: str, side: Callable[[Workspace], Outcome], times: int, timeout_s: float, of: str = ""
) -> Row:
    """A row of retrainings; `of` says in the titles whose memory, files and processes are counted."""
    return Row(
        id=row,
        sides={"a": side},
        claims=(
            _claim(row, where, "s", "time", "s", 1.1),
            _claim(row, where, "mb", f"memory{of}", "MB", 1.3),
            _claim(row, where, "files", f"open files{of}", "files", 1.1),
            _claim(row, where, "processes", f"processes{of}", "processes", 1.0),
            _claim(row, where, "disk", "disk space that a retraining adds", "MB", 1.1),
        ),
        pairs=times,
        warm_up=False,
        timeout_s=timeout_s,
    )


ROW = _row(
    "P14-again",
    f"{_HERE} retrainings in a process",
    here,
    times=5,
    timeout_s=1200.0,
    of=" of the process and its children",
)
ON_A_CLUSTER = _row(
    "P14-cluster", f"{_ON_A_CLUSTER} retrainings on a cluster", on_a_cluster, times=3, timeout_s=2400.0
)
