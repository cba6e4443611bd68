"""N3: preparation and start of `evergreen retrain` with 1k to 10M rows, with the default way of execution.

Prefect, Ray, two workers, and two steps of a model of one layer. For few rows, the fixed seconds of a start hide what
grows with the rows, so there is one exponent for each tenfold increase.
"""

import math
from collections.abc import Callable

from benchmarks.baselines.images import idx_folder
from benchmarks.harness.row import Claim, Outcome, Row, Workspace

_ROWS = {"1k": 1_000, "10k": 10_000, "100k": 100_000, "1m": 1_000_000, "10m": 10_000_000}
_NEIGHBOURS = list(zip(list(_ROWS)[1:], list(_ROWS), strict=False))
_SETTINGS = {
    "training.epochs": "1",
    "training.max_steps": "2",
    "training.global_batch_size": "256",
    "gate.floor": "0",
    "tracking.system_metrics": "false",
}


def prepare(workspace: Workspace) -> None:
    """Write the idx files of all sizes."""
    for name in _ROWS:
        idx_folder(workspace.data, _rows(workspace, name))


def _rows(workspace: Workspace, name: str) -> int:
    return max(1_000, _ROWS[name] // workspace.pick(1, 10, 1_000))


def _side(name: str) -> Callable[[Workspace], Outcome]:
    def run(workspace: Workspace) -> Outcome:
        return _retrained(workspace, _rows(workspace, name))

    return run


def _retrained(workspace: Workspace, rows: int) -> Outcome:
    """Seconds of preparation and start, and the peak of all processes' private memory."""
    from benchmarks.baselines.retraining import retrain
    from benchmarks.baselines.trainings import recipe_file
    from benchmarks.harness.tree import TreeMeter, adopt_orphans

    adopt_orphans()
    data = {"data.path": str(idx_folder(workspace.data, rows))}
    with TreeMeter() as meter:
        done = retrain(workspace.own / "home", recipe_file("linear"), _SETTINGS | data)
    release = done.recorded()
    parts = release.goodput.parts
    if release.train_rows != rows:
        raise RuntimeError(f"{release.train_rows} rows were prepared, not {rows}")
    return Outcome({"seconds": parts["preparation"] + parts["start-up"], "peak_mb": meter.peak_mb})


def _exponent(large: float, small: float) -> float:
    return math.log(large / small) / math.log(10)


ROW = Row(
    id="N3",
    sides={name: _side(name) for name in _ROWS},
    claims=tuple(
        claim
        for large, small in _NEIGHBOURS
        for claim in (
            Claim(
                f"N3-{large}",
                f"exponent of preparation and start over the rows, {small} to {large}",
                of="seconds",
                unit="s",
                goal=1.05,
                at_least=False,
                a=large,
                b=small,
                compare=_exponent,
                geometric=False,
            ),
            Claim(
                f"N3-{large}-mb",
                f"peak private memory of all processes, {large} rows / {small}",
                of="peak_mb",
                unit="MB",
                goal=1.3,  # flat, with room for noise: the limit of row P14-memory
                at_least=False,
                a=large,
                b=small,
            ),
        )
    ),
    prepare=prepare,
    others=(),
    pairs=3,  # each takes about ten minutes
    warm_up=False,
    timeout_s=4 * 3600.0,
)
