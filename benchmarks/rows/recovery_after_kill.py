"""P10: SIGKILL a rank; seconds until the next step, and the share of kills that training recovers from.

Side B is `torchrun --max-restarts` with snapshots; its time counts only the kills from which it recovers. Both sides
have the same time limit for a recovery. When B does not recover within it, B is started and killed again. The number of
a run is the median of its recoveries: some of B's take until its process group notices the loss, after half a minute.
"""

import os
import random
import signal
import subprocess
import time
from pathlib import Path
from statistics import median

from benchmarks.baselines.kills import LONGEST_S
from benchmarks.harness.row import Claim, Outcome, Row, Workspace

_MOST_TRIES = 5
_KILLS = 20
_RECOVERIES = 10  # of torchrun


def prepare(workspace: Workspace) -> None:
    """Prepare the dataset version."""
    from benchmarks.baselines.trainings import version_of

    version_of(workspace.data, 2560)


def evergreen(workspace: Workspace) -> Outcome:
    """A: `training.supervision.launch` with two workers, whose ranks are killed one after the other."""
    from benchmarks.baselines.kills import Killer, recovered
    from benchmarks.baselines.on_ray import launch_on_ray
    from benchmarks.baselines.trainings import job_of, version_of
    from training.errors import StopRequestedError

    settings = {
        "training": {"epochs": 1000, "global_batch_size": 48},
        "scaling": {"num_workers": 2},
        "checkpoint": {"every_steps": 20},
        "tracking": {"log_every_steps": 1},
        "failure": {"max_failures": 1000},
    }
    job = job_of(workspace.own / "home", version_of(workspace.data, 2560), "waiting", settings)
    killer = Killer(job.paths, _kills(workspace), _seed(workspace))
    thread = killer.start(then=job.paths.stop.touch)
    try:
        launch_on_ray(job)
    except StopRequestedError:
        thread.join()
    recoveries = recovered(killer.seconds)
    wanted = _kills(workspace)
    never = [LONGEST_S] * (wanted - len(recoveries))
    seconds = median(recoveries + never)
    return Outcome({"seconds": seconds, "share": len(recoveries) / wanted, "kills": wanted})


def torchrun(workspace: Workspace) -> Outcome:
    """B: `torchrun --max-restarts`."""
    from benchmarks.baselines.kills import recovered

    draw = random.Random(_seed(workspace))
    seconds: list[float | None] = []
    wanted = workspace.pick(_RECOVERIES, 2, 1)
    while len(recovered(seconds)) < wanted:
        seconds += _until_stuck(workspace.own, draw, wanted - len(recovered(seconds)))
        if len(seconds) > _MOST_TRIES * wanted:
            raise RuntimeError(f"torchrun recovered from {len(recovered(seconds))} of {len(seconds)} kills")
    recoveries = recovered(seconds)
    return Outcome(
        {"seconds": median(recoveries), "share": len(recoveries) / len(seconds), "kills": len(seconds)}
    )


def _until_stuck(folder: Path, draw: random.Random, kills: int) -> list[float | None]:
    """Kill a rank `kills` times, or until training does not resume."""
    from benchmarks.baselines.torchrun import torchrun as command
    from benchmarks.harness.tree import end_descendants

    for left in folder.glob("steps.jsonl"):
        left.unlink()
    program = command("benchmarks.baselines.bare_restarts", [str(folder)], max_restarts=1000)
    process = subprocess.Popen(program, stdin=subprocess.DEVNULL)
    seconds: list[float | None] = []
    while len(seconds) < kills and None not in seconds:
        seconds.append(_kill_one(folder, draw))
    end_descendants()
    process.wait()
    return seconds


def _kill_one(folder: Path, draw: random.Random) -> float | None:
    from benchmarks.baselines.kills import PAUSE_S, newest_step_at

    steps = folder / "steps.jsonl"
    began = time.time()
    while (newest_step_at(steps) or 0.0) < began:
        time.sleep(0.02)
    time.sleep(draw.uniform(*PAUSE_S))
    victim = int((folder / f"rank-{draw.randrange(2)}.pid").read_text())
    os.kill(victim, signal.SIGKILL)
    killed_at = time.time()
    time.sleep(0.1)  # let the other rank finish what it is writing
    quiet_since = time.time()
    while time.time() < killed_at + LONGEST_S:
        at = newest_step_at(steps)
        if at is not None and at > quiet_since:
            return at - killed_at
        time.sleep(0.02)
    return None


def _kills(workspace: Workspace) -> int:
    return workspace.pick(_KILLS, 2, 1)


def _seed(workspace: Workspace) -> int:
    """Seed derived from the run's folder, so that every run draws differently."""
    return sum(workspace.own.name.encode())


ROW = Row(
    id="P10",
    sides={"a": evergreen, "b": torchrun},
    claims=(
        Claim(
            "P10",
            "SIGKILL of a rank to the next step / torchrun --max-restarts where it recovers within "
            f"{LONGEST_S:.0f} s, medians",
            of="seconds",
            unit="s",
            goal=1.5,
            at_least=False,
        ),
        Claim(
            "P10-share",
            "share of the kills that training recovered from",
            of="share",
            unit="",
            goal=1.0,
            at_least=True,
            b="a",
            compare=lambda a, _: a,
            geometric=False,
            counted="kills",
        ),
        Claim(
            "P10-torchrun",
            f"share of the kills that torchrun --max-restarts recovered from within {LONGEST_S:.0f} s",
            of="share",
            unit="",
            goal=None,
            at_least=True,
            a="b",
            compare=lambda b, _: b,
            geometric=False,
            counted="kills",
        ),
    ),
    prepare=prepare,
    warm_up=False,
    timeout_s=3600.0,
)
