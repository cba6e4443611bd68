"""N1: `evergreen retrain digits` twice in a new home, with the present code and with an earlier commit's code.

Both use the installed packages. EVERGREEN_BASELINE names the earlier commit, which must be in this repository.
"""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.harness.row import Claim, Outcome, Row, Size, Workspace

_REPOSITORY = Path(__file__).parents[2]
_COMMIT = os.environ.get("EVERGREEN_BASELINE", "5f53911")


def unavailable(_size: Size) -> str:
    """Reason why there is no commit to compare with, or ""."""
    known = _git("cat-file", "-e", f"{_COMMIT}^{{commit}}")
    return "" if known.returncode == 0 else f"the repository has no commit {_COMMIT} (EVERGREEN_BASELINE)"


def prepare(workspace: Workspace) -> None:
    """Unpack the files of the earlier commit."""
    _earlier(workspace).mkdir()
    packed = _git("archive", _COMMIT, "flows", "tasks", "training")
    packed.check_returncode()
    subprocess.run(["tar", "-x", "-C", _earlier(workspace)], input=packed.stdout, check=True)
    subprocess.run([sys.executable, "-m", "compileall", "-q", _earlier(workspace)], check=True)


def present(workspace: Workspace) -> Outcome:
    """A: the present code."""
    return _two_runs(workspace, _REPOSITORY)


def earlier(workspace: Workspace) -> Outcome:
    """B: the earlier commit."""
    return _two_runs(workspace, _earlier(workspace))


def _two_runs(workspace: Workspace, code: Path) -> Outcome:
    from benchmarks.baselines.retraining import retrain

    first, again = (retrain(workspace.own / "home", "digits", {}, code) for _ in range(2))
    values = {"seconds": first.seconds, "again_s": again.seconds}
    return Outcome(values, {"weights": first.release["weights_digest"]})


def _earlier(workspace: Workspace) -> Path:
    return workspace.shared / "earlier"


def _git(*arguments: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["git", *arguments], cwd=_REPOSITORY, capture_output=True, check=False)


ROW = Row(
    id="N1",
    sides={"a": present, "b": earlier},
    claims=(
        Claim(
            "N1",
            f"first retraining of the digits in a new home / with the code of commit {_COMMIT}",
            of="seconds",
            unit="s",
            goal=0.6,
            at_least=False,
            note="both on two workers; the CPU seconds of all processes vary less",
        ),
        Claim(
            "N1-again",
            f"the same retraining again, which finds nothing to do / with the code of commit {_COMMIT}",
            of="again_s",
            unit="s",
            goal=1.0,
            at_least=False,
        ),
    ),
    prepare=prepare,
    same=("weights",),
    warm_up=False,
    unavailable=unavailable,
)
