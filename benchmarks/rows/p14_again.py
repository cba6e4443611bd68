"""P14, again: twenty retrainings in one process; the last ones cost no more than the first ones.

In this process and without Ray, so that what grows is Evergreen's, Prefect's or MLflow's.
"""

import gc
import os
import time
from pathlib import Path

import psutil

from benchmarks.harness.row import Claim, Outcome, Place, Row

_COMPARED = 5  # first and last ones, after two that warm up
_WARM = 2


def retrainings(place: Place) -> Outcome:
    """Twenty runs of the flow, each with another seed."""
    home = place.own / "home"
    os.environ["EVERGREEN_HOME"] = str(home)
    from flows.environment import prepare
    from flows.prefect_server import prefect_api
    from training.paths import Home

    os.environ.pop("PREFECT_HOME", None)
    prepare(Home(home))
    seen: dict[str, list[float]] = {"s": [], "mb": [], "files": []}
    with prefect_api(Home(home)):
        for seed in range(place.pick(20, 14, 12)):
            began = time.perf_counter()
            _retrain(seed)
            seen["s"].append(time.perf_counter() - began)
            gc.collect()
            seen["mb"].append(psutil.Process().memory_info().rss / 2**20)
            seen["files"].append(float(len(list(Path("/proc/self/fd").iterdir()))))
    early = {f"early_{name}": list(values[_WARM : _WARM + _COMPARED]) for name, values in seen.items()}
    late = {f"late_{name}": list(values[-_COMPARED:]) for name, values in seen.items()}
    return Outcome(early | late)


def _retrain(seed: int) -> None:
    from flows.environment import quieten
    from flows.retrain import SettingsForm, retrain

    quieten()
    overrides = {
        "seed": seed,
        "training": {"epochs": 1},
        "scaling": {"num_workers": 0, "use_gpu": "no"},
        "data": {"max_train_rows": 400, "max_test_rows": 100},
        "gate": {"floor": 0.0},
        "tracking": {"system_metrics": False},
    }
    release = retrain("digits", SettingsForm.model_validate(overrides))
    if release.reused:
        raise RuntimeError(f"seed {seed} was found done")


def _claim(name: str, what: str, unit: str, goal: float) -> Claim:
    return Claim(
        f"P14-again-{name}",
        f"{what}, last of 20 retrainings in a process / first",
        of=f"late_{name}",
        of_b=f"early_{name}",
        unit=unit,
        goal=goal,
        at_least=False,
        b="a",
        note="pairs are single retrainings",
    )


ROW = Row(
    id="P14-again",
    sides={"a": retrainings},
    claims=(
        _claim("s", "time", "s", 1.1),
        _claim("mb", "memory", "MB", 1.3),
        _claim("files", "open files", "files", 1.1),
    ),
    pairs=1,
    warm_up=False,
)
