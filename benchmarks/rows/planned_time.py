"""N7: the time that `evergreen plan` predicts for a retraining, and the time that the retraining then takes.

The recipe has been trained once before in the same home, with the recipe's own settings.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.harness.row import Claim, Outcome, Row, Workspace


def predicted(workspace: Workspace) -> Outcome:
    """A: the seconds of `evergreen plan`, and those of `evergreen retrain` with the same changed settings."""
    from benchmarks.baselines.retraining import retrain

    home, changed = (
        workspace.own / "home",
        {"seed": "1", "training.epochs": str(workspace.pick(200, 100, 20))},
    )
    retrain(home, "digits", {})
    seconds = _planned(home, "digits", changed)
    return Outcome({"planned_s": seconds, "taken_s": retrain(home, "digits", changed).seconds})


def _planned(home: Path, recipe: str, settings: dict[str, str]) -> float:
    command = [sys.executable, "-m", "flows.cli.main", "plan", recipe, "--json"]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    done = subprocess.run(
        command,
        env=os.environ | {"EVERGREEN_HOME": str(home)},
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout.splitlines()[-1])["estimated_seconds"])


def _factor(a: float, b: float) -> float:
    """By which factor the larger of two times exceeds the other."""
    return max(a, b) / min(a, b)


ROW = Row(
    id="N7",
    sides={"a": predicted},
    claims=(
        Claim(
            "N7",
            "seconds that evergreen plan predicts for a retraining, and seconds that it takes: larger / smaller",
            of="planned_s",
            of_b="taken_s",
            unit="s",
            goal=1.3,
            at_least=False,
            b="a",
            compare=_factor,
        ),
    ),
    warm_up=False,
)
