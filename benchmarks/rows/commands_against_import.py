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

from benchmarks.harness.row import Claim, Outcome, Place, Row

_IMAGES = 64


def prepare(place: Place) -> None:
    """Make a home with two champions, one after the other, and a Parquet file of images."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from benchmarks.baselines.retraining import retrain

    # A training of two steps is worse than a training of some epochs, so that the gate lets both pass.
    for settings in ({"training.max_steps": "2"}, {"training.epochs": str(place.pick(10, 10, 5))}):
        common = {"gate.floor": "0", "scaling.num_workers": "0", "scaling.use_gpu": "no"}
        release = retrain(_home(place), "digits", common | settings).release
        if release["alias"] != "champion":
            raise RuntimeError(f"version {release['version']} is not champion: {release['verdict']}")
    pixels = np.random.default_rng(0).integers(0, 256, (_IMAGES, 8, 8), np.uint8)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(pixels)
    pq.write_table(pa.table({"image": column}), _images(place))


def commands(place: Place) -> Outcome:
    """A: score the images, then roll back; the rollback is undone afterwards, without being timed."""
    out = place.own / "out.parquet"
    predict_s, predicted = _timed(place, "predict", "digits", str(_images(place)), str(out))
    rollback_s, moved = _timed(place, "rollback", "digits")
    _timed(place, "rollback", "digits", "--to", str(moved["from"]))
    if predicted["rows"] != _IMAGES or {moved["from"], moved["to"]} != {"1", "2"}:
        raise RuntimeError(f"not what the commands are for: {predicted}, {moved}")
    return Outcome({"predict_s": predict_s, "rollback_s": rollback_s})


def imports(place: Place) -> Outcome:
    """B: `python -c "import mlflow"`."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import mlflow"], cwd=place.own, check=True)
    return Outcome({"seconds": time.perf_counter() - began})


def _timed(place: Place, *arguments: str) -> tuple[float, dict[str, object]]:
    """Seconds of a whole command, and its JSON output."""
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_HOME"}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli.main", *arguments, "--json"],
        env=environment | {"EVERGREEN_HOME": str(_home(place))},
        cwd=place.own,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(
            f"evergreen {arguments[0]} ended with status {done.returncode}:\n{done.stderr[-3000:]}"
        )
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return seconds, found


def _home(place: Place) -> Path:
    return place.shared / "home"


def _images(place: Place) -> Path:
    return place.shared / "images.parquet"


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
