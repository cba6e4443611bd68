"""One run of one side in its own process: `python -m benchmarks.harness.side ROW SIDE ...`.

`run_side` starts that process and returns what the side measured; :func:`main` is what the process runs. The side
`prepare` creates the inputs that all runs of the row share.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from benchmarks.chaos.services import clean_environment
from benchmarks.harness.row import Outcome, Row, Size, Workspace
from benchmarks.harness.tree import TreeMeter
from training.ray_cluster import patches

PREPARE = "prepare"
DATA_VARIABLE = "EVERGREEN_TEST_DATA"
BASELINE_VARIABLE = "EVERGREEN_BASELINE"  # see benchmarks/rows/first_run_against_earlier_commit.py
_ROOT = Path(__file__).parents[2]
_MARK = "benchmark-outcome: "
_SHOWN = 3000


class SideError(Exception):
    """A side ended with an error or without a result."""


@dataclass(frozen=True)
class Measured:
    """An outcome and its cost: CPU seconds and peak private memory of the whole process tree."""

    outcome: Outcome
    cpu_s: float
    peak_mb: float


def run_side(row: Row, side: str, workspace: Workspace) -> Measured:
    """Run a side to its end and return what it measured. Raises :class:`SideError` with the end of its output."""
    command = [sys.executable, "-m", "benchmarks.harness.side", row.id, side]
    command += [workspace.size, str(workspace.data), str(workspace.shared), str(workspace.own)]
    with tempfile.TemporaryFile("w+") as said, TreeMeter() as meter:
        process = subprocess.Popen(
            command,
            cwd=workspace.own,
            env=environment(row, workspace),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,  # a signal of a library to its process group must not reach this process
        )
        try:
            status = process.wait(row.timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        said.seek(0)
        text = said.read()
    outcome_line = next((line for line in reversed(text.splitlines()) if line.startswith(_MARK)), None)
    if status or outcome_line is None:
        how = f"did not end within {row.timeout_s:.0f} s" if status is None else f"ended with status {status}"
        raise SideError(f"{row.id} {side} {how}:\n{text[-_SHOWN:]}")
    fields: dict[str, Any] = json.loads(outcome_line.removeprefix(_MARK))
    return Measured(Outcome(**fields), meter.cpu_s, meter.peak_mb)


def environment(row: Row, workspace: Workspace) -> dict[str, str]:
    """The user's environment without variables that point to servers and stores; with the row's threads and hooks."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(row.threads))
    data = {name: os.environ[name] for name in (DATA_VARIABLE, BASELINE_VARIABLE) if name in os.environ}
    return (
        clean_environment()
        | threads
        | data
        | {
            "PYTHONPATH": str(_ROOT),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_HOME": str(workspace.own / "prefect"),
            patches.VARIABLE: str(int(workspace.hooks)),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": _ray_folder(workspace),
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "1",
        }
    )


def _ray_folder(workspace: Workspace) -> str:
    """A folder for Ray with a short path, because Ray's Unix sockets lie in it."""
    folder = workspace.shared.parent / "r"  # that of a side alone has a path that is too long
    folder.mkdir(exist_ok=True)
    return str(folder)


def main(arguments: list[str]) -> None:
    """Run the side that the arguments name, and print its outcome as JSON."""
    from benchmarks.rows import find_row

    row_id, side, size, data, shared, own = arguments
    row = find_row(row_id)
    workspace = Workspace(Path(data), Path(shared), Path(own), cast(Size, size), patches.active())
    if side == PREPARE:
        row.prepare(workspace)
        outcome = Outcome({})
    else:
        outcome = row.sides[side](workspace)
    print(_MARK + json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
