"""P8 and P9: a whole first `evergreen retrain`, and the same command again.

Side B trains the same model on the same data to the same accuracy with a plain script: no Parquet, no tracking, no
comparison, no registry, no report.
"""

import json
import time

from benchmarks.harness.row import Claim, Outcome, Row, Workspace

_ALLOWANCE_S = 15.0  # seconds that everything besides training may take


def retrain(workspace: Workspace) -> Outcome:
    """A: `evergreen retrain digits` in an empty home, then the same command again."""
    from benchmarks.baselines.retraining import retrain as command

    settings = {"training.epochs": str(_epochs(workspace)), "scaling.use_gpu": "no"}
    first = command(workspace.own / "home", "digits", settings)
    again = command(workspace.own / "home", "digits", settings)
    if not again.release["reused"] or again.release["version"] != first.release["version"]:
        raise RuntimeError(f"the second run did not find the version of the first run: {again.release}")
    return Outcome(
        {"seconds": first.seconds, "again_s": again.seconds},
        {"accuracy": first.release["metrics"]["accuracy"]},
    )


def by_hand(workspace: Workspace) -> Outcome:
    """B: the plain script under `torchrun`."""
    from benchmarks.baselines.torchrun import run

    out = workspace.own / "bare.json"
    began = time.perf_counter()
    run("benchmarks.baselines.bare_digits", [str(_epochs(workspace)), str(out)])
    seconds = time.perf_counter() - began
    return Outcome({"seconds": seconds}, json.loads(out.read_text()))


def _epochs(workspace: Workspace) -> int:
    return workspace.pick(20, 20, 10)


def _without_allowance(a: float, b: float) -> float:
    return max(a - _ALLOWANCE_S, 0.01) / b


ROW = Row(
    id="P8",
    sides={"a": retrain, "b": by_hand},
    claims=(
        Claim(
            "P8",
            "(first evergreen retrain - 15 s) / bare script",
            of="seconds",
            unit="s",
            goal=1.05,
            at_least=False,
            compare=_without_allowance,
        ),
        Claim(
            "P9",
            "evergreen retrain again / the first",
            of="again_s",
            of_b="seconds",
            unit="s",
            goal=0.1,
            at_least=False,
            b="a",
        ),
        Claim(
            "P9-seconds",
            "evergreen retrain again",
            of="again_s",
            unit="s",
            goal=5.0,
            at_least=False,
            b="a",
            compare=lambda a, _: a,
            geometric=False,
        ),
    ),
    close={"accuracy": 0.03},
)
