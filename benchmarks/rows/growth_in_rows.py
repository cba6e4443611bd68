"""P14, rows: preparing sixteen times the rows must take at most sixteen times as long, and no more memory."""

import math
import shutil
import time
from pathlib import Path

from benchmarks.baselines.images import idx_folder
from benchmarks.harness.row import Claim, Outcome, Row, Workspace

_GROWTH = 16


def prepare(workspace: Workspace) -> None:
    """Write both sets of idx files."""
    for rows in (_rows(workspace), _GROWTH * _rows(workspace)):
        idx_folder(workspace.data, rows)


def sixteen(workspace: Workspace) -> Outcome:
    """A: sixteen times as many rows as side B."""
    return _prepared(workspace, _GROWTH * _rows(workspace))


def one(workspace: Workspace) -> Outcome:
    """B: the base number of rows."""
    return _prepared(workspace, _rows(workspace))


def _rows(workspace: Workspace) -> int:
    return workspace.pick(15_000, 5_000, 1_000)


def _prepared(workspace: Workspace, rows: int) -> Outcome:
    from benchmarks.baselines.trainings import prepare as prepare_dataset
    from training.settings.schema import Settings
    from training.storage.paths import Home

    settings = Settings.model_validate({"data": {"path": str(idx_folder(workspace.data, rows))}})
    taken, peaks = [], []
    for turn in range(1 + workspace.pick(4, 2, 1)):
        began = time.perf_counter()
        version = prepare_dataset(Home(workspace.own / f"home-{turn}"), settings)
        taken.append(time.perf_counter() - began)
        peaks.append(_peak_mb())
        if version.rows("train") != rows:
            raise RuntimeError(f"{version.rows('train')} rows were prepared, not {rows}")
        shutil.rmtree(workspace.own / f"home-{turn}")
    # The first preparation also imports modules, and allocates memory that later ones reuse.
    return Outcome({"seconds": taken[1:], "peak_mb": peaks[0]}, {"shape": list(version.shape)})


def _peak_mb() -> float:
    """Peak resident memory of this process; `getrusage` would include its parent's memory before the exec."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


def _exponent(large: float, small: float) -> float:
    return math.log(large / small) / math.log(_GROWTH)


ROW = Row(
    id="P14-rows",
    sides={"a": sixteen, "b": one},
    claims=(
        Claim(
            "P14-rows",
            "exponent of preparation's time over its rows, x1 to x16",
            of="seconds",
            unit="s",
            goal=1.05,
            at_least=False,
            compare=_exponent,
            geometric=False,
        ),
        Claim(
            "P14-memory",
            "peak memory of preparing x16 rows / x1",
            of="peak_mb",
            unit="MB",
            goal=1.3,
            at_least=False,
        ),
    ),
    prepare=prepare,
    same=("shape",),
    others=(),
    pairs=6,
)
