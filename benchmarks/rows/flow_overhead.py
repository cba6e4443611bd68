"""P6: what the flow adds to its steps: the `retrain` flow in a warm process, and the same functions called directly.

Both sides start Ray and train on two workers, as `evergreen retrain` does by default.
"""

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any

from benchmarks.harness.row import Claim, Outcome, Row, Workspace

_JOB_S = 60.0  # duration of the job to which the claim relates the difference


def flow(workspace: Workspace) -> Outcome:
    """A: `flows.retrain.retrain` with a separate Prefect server, as in the command."""
    home = _home(workspace)
    from flows.local.environment import prepare
    from flows.local.prefect_server import prefect_api

    os.environ.pop("PREFECT_HOME", None)
    prepare(home)

    def retrain(overrides: dict[str, Any]) -> Any:
        from flows.local.environment import quieten
        from flows.retrain import retrain as the_flow

        quieten()
        return the_flow("digits", overrides)

    return _timed(workspace, retrain, prefect_api(home))


def functions(workspace: Workspace) -> Outcome:
    """B: the same steps without Prefect."""
    home = _home(workspace)
    from flows.local.environment import prepare

    prepare(home)

    def retrain(overrides: dict[str, Any]) -> Any:
        from benchmarks.baselines import direct

        return direct.retrain(home, "digits", overrides)

    return _timed(workspace, retrain, nullcontext())


def _home(workspace: Workspace) -> Any:
    from training.storage.paths import Home

    os.environ["EVERGREEN_HOME"] = str(workspace.own / "home")
    return Home(workspace.own / "home")


def _timed(
    workspace: Workspace, retrain: Callable[[dict[str, Any]], Any], api: AbstractContextManager[None]
) -> Outcome:
    """Median over retrainings with different rows, so that no step is cached, after one retraining for warm-up."""
    taken = []
    with api:
        for turn in range(1 + workspace.pick(2, 2, 1)):
            overrides = {
                "seed": turn,
                "data": {"max_train_rows": 600 + turn, "max_test_rows": 150},
                "training": {"epochs": 2},
                "scaling": {"use_gpu": "no"},
                "gate": {"floor": 0.0},
            }
            began = time.perf_counter()
            release = retrain(overrides)
            taken.append(time.perf_counter() - began)
            if release.reused:
                raise RuntimeError("a retraining reused a finished run")
    return Outcome({"seconds": median(taken[1:])}, {"weights": release.weights_digest})


ROW = Row(
    id="P6",
    sides={"a": flow, "b": functions},
    claims=(
        Claim(
            "P6",
            "seconds that the flow adds to its steps, warm",
            of="seconds",
            unit="s",
            goal=1.5,
            at_least=False,
            compare=lambda a, b: a - b,
            geometric=False,
        ),
        Claim(
            "P6-share",
            "the same as a share of a minute's job",
            of="seconds",
            unit="s",
            goal=0.02,
            at_least=False,
            compare=lambda a, b: (a - b) / _JOB_S,
            geometric=False,
        ),
    ),
    same=("weights",),
    pairs=10,  # the difference of two runs of 17 s each varies by most of a second
    warm_up=False,
)
