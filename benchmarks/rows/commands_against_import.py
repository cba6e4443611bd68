"""U1 to U4: whole commands that a person waits for; side B imports in Python what such a command can't do without."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.harness.row import Claim, Outcome, Row, Workspace

_IMAGES = 20
_SETTINGS = {"gate.floor": "0", "scaling.num_workers": "0", "scaling.use_gpu": "no"}
_IMPORTS = {
    "predict": "torch, mlflow",
    "retrain": "prefect, mlflow",
    "plan": "prefect",
    "rollback": "mlflow",
}
_GOALS = {"predict": 1.5, "retrain": 0.8, "plan": 1.5, "rollback": 1.5}


def prepare(workspace: Workspace) -> None:
    """Make a home with two champions, one after the other, and a Parquet file of images."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from benchmarks.baselines.retraining import retrain

    # A training of two steps is worse than a training of some epochs, so that the gate lets both pass.
    for settings in ({"training.max_steps": "2"}, _longer(workspace)):
        release = retrain(_home(workspace), "digits", _SETTINGS | settings).release
        if release["alias"] != "champion":
            raise RuntimeError(f"version {release['version']} is not champion: {release['verdict']}")
    pixels = np.random.default_rng(0).integers(0, 256, (_IMAGES, 8, 8), np.uint8)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(pixels)
    pq.write_table(pa.table({"image": column}), _images(workspace))


def commands(workspace: Workspace) -> Outcome:
    """A: score images, retrain and plan with nothing changed, and roll back; the rollback is undone, untimed."""
    out = workspace.own / "out.parquet"
    same = [
        argument
        for pair in (_SETTINGS | _longer(workspace)).items()
        for argument in ("--set", "=".join(pair))
    ]
    predict_s, predicted = _timed(workspace, "predict", "digits", str(_images(workspace)), str(out))
    retrain_s, retrained = _timed(workspace, "retrain", "digits", *same)
    plan_s, _ = _timed(workspace, "plan", "digits", *same)
    rollback_s, moved = _timed(workspace, "rollback", "digits")
    _timed(workspace, "rollback", "digits", "--to", str(moved["from"]))
    if predicted["rows"] != _IMAGES or not retrained["reused"] or {moved["from"], moved["to"]} != {"1", "2"}:
        raise RuntimeError(f"not what the commands are for: {predicted}, {retrained}, {moved}")
    return Outcome({"predict": predict_s, "retrain": retrain_s, "plan": plan_s, "rollback": rollback_s})


def imports(workspace: Workspace) -> Outcome:
    """B: `python -c "import ..."` for each command."""
    return Outcome({command: _import_s(workspace, modules) for command, modules in _IMPORTS.items()})


def _import_s(workspace: Workspace, modules: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {modules}"], cwd=workspace.own, check=True)
    return time.perf_counter() - began


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


def _longer(workspace: Workspace) -> dict[str, str]:
    return {"training.epochs": str(workspace.pick(10, 10, 5))}


def _claim(number: int, command: str) -> Claim:
    return Claim(
        f"U{number}",
        f'evergreen {command}, the whole command / python -c "import {_IMPORTS[command]}"',
        of=command,
        unit="s",
        goal=_GOALS[command],
        at_least=False,
    )


ROW = Row(
    id="U",
    sides={"a": commands, "b": imports},
    claims=tuple(_claim(number, command) for number, command in enumerate(_IMPORTS, 1)),
    prepare=prepare,
)
