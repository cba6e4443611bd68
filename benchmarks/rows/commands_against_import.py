"""N5: seconds of `evergreen predict` and `evergreen rollback`, as whole commands; side B is `import mlflow` in Python.

The definition of the row also names a command `history`, which Evergreen does not have: the decisions about a model are
in the report of each run and in MLflow.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.harness.row import Claim, Outcome, Row, Workspace

_IMAGES = 64


def prepare(workspace: Workspace) -> None:
    """Make a home with two champions, one after the other, and a Parquet file of images."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from benchmarks.baselines.retraining import retrain

    # A training of two steps is worse than a training of some epochs, so that the gate lets both pass.
    for settings in ({"training.max_steps": "2"}, {"training.epochs": str(workspace.pick(10, 10, 5))}):
        common = {"gate.floor": "0", "scaling.num_workers": "0", "scaling.use_gpu": "no"}
        release = retrain(_home(workspace), "digits", common | settings).release
        if release["alias"] != "champion":
            raise RuntimeError(f"version {release['version']} is not champion: {release['verdict']}")
    pixels = np.random.default_rng(0).integers(0, 256, (_IMAGES, 8, 8), np.uint8)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(pixels)
    pq.write_table(pa.table({"image": column}), _images(workspace))


def commands(workspace: Workspace) -> Outcome:
    """A: score the images, then roll back; the rollback is undone afterwards, without being timed."""
    out = workspace.own / "out.parquet"
    predict_s, predicted = _timed(workspace, "predict", "digits", str(_images(workspace)), str(out))
    rollback_s, moved = _timed(workspace, "rollback", "digits")
    _timed(workspace, "rollback", "digits", "--to", str(moved["from"]))
    if predicted["rows"] != _IMAGES or {moved["from"], moved["to"]} != {"1", "2"}:
        raise RuntimeError(f"not what the commands are for: {predicted}, {moved}")
    return Outcome({"predict_s": predict_s, "rollback_s": rollback_s})


def imports(workspace: Workspace) -> Outcome:
    """B: `python -c "import mlflow"`."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import mlflow"], cwd=workspace.own, check=True)
    return Outcome({"seconds": time.perf_counter() - began})


def _timed(workspace: Workspace, *arguments: str) -> tuple[float, dict[str, object]]:
    """Seconds of a whole command, and its JSON output."""
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_HOME"}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli.main", *arguments, "--json"],
        env=environment | {"EVERGREEN_HOME": str(_home(workspace))},
        cwd=workspace.own,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(
            f"evergreen {arguments[0]} ended with status {done.returncode}:\n{done.stderr[-3000:]}"
        )
    output: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return seconds, output


def _home(workspace: Workspace) -> Path:
    return workspace.shared / "home"


def _images(workspace: Workspace) -> Path:
    return workspace.shared / "images.parquet"


def _claim(command: str) -> Claim:
    return Claim(
        f"N5-{command}",
        f'evergreen {command}, the whole command / python -c "import mlflow"',
        of=f"{command}_s",
        of_b="seconds",
        unit="s",
        goal=2.0,
        at_least=False,
    )


ROW = Row(
    id="N5",
    sides={"a": commands, "b": imports},
    claims=(_claim("predict"), _claim("rollback")),
    prepare=prepare,
)
