"""P16: goodput with ten seeded kills: the useful share of the wall time, compared with what recovery explains.

The useful time is the duration of the same training without kills. The explained share is
1 - kills x (recovery + half the interval between checkpoints) / wall, with the mean recovery time of the same run. An
epoch, at whose end a checkpoint is saved as well, has several intervals; the pauses before the kills cover exactly
one interval.
"""

from statistics import mean
from typing import Any

from benchmarks.harness.row import Claim, Outcome, Row, Workspace

_EVERY_S = 3.0
_PAUSE_S = (0.5, 0.5 + _EVERY_S)
_ROWS = 20_000


def prepare(workspace: Workspace) -> None:
    """Prepare the dataset version."""
    from benchmarks.baselines.trainings import version_of

    version_of(workspace.data, workspace.pick(_ROWS, 5_000, 2_560))


def with_kills(workspace: Workspace) -> Outcome:
    """A: a rank is killed ten times; training resumes each time and reaches its end."""
    from benchmarks.baselines.kills import Killer, recovered

    job, kills = _job(workspace), workspace.pick(10, 3, 1)
    # Derived from the run's folder, so that every run draws differently.
    killer = Killer(job.paths, kills, sum(workspace.own.name.encode()), pause_s=_PAUSE_S)
    thread = killer.start()
    wall, trained = _run(job)
    thread.join(1.0)
    recoveries = recovered(killer.seconds)
    if len(recoveries) != kills:  # the training may have ended before the last kill
        raise RuntimeError(f"training recovered from {len(recoveries)} kills, not from {kills}")
    lost = len(recoveries) * (mean(recoveries) + _EVERY_S / 2)
    explained = 1 - lost / wall
    return Outcome({"explained_s": explained * wall, "wall_s": wall}, {"weights": trained.weights_digest})


def without(workspace: Workspace) -> Outcome:
    """B: the same training without kills."""
    wall, trained = _run(_job(workspace))
    return Outcome({"wall_s": wall}, {"weights": trained.weights_digest})


def _run(job: Any) -> tuple[float, Any]:
    """Train; returns the seconds from the loop's first readiness to the last metric point, and the record."""
    from benchmarks.baselines.kills import newest_step_at
    from benchmarks.baselines.on_ray import launch_on_ray
    from training.attempts.history import read_attempts

    trained = launch_on_ray(job)
    ended = newest_step_at(job.paths.metrics)
    assert ended is not None
    return ended - read_attempts(job.paths)[0].ready, trained


def _job(workspace: Workspace) -> Any:
    from benchmarks.baselines.trainings import job_of, version_of

    settings = {
        "training": {"epochs": workspace.pick(3, 4, 8), "global_batch_size": 48},
        "scaling": {"num_workers": 2},
        "checkpoint": {"every_s": _EVERY_S},
        "tracking": {"log_every_steps": 1},
        "failure": {"max_failures": 100},
    }
    return job_of(
        workspace.own / "home",
        version_of(workspace.data, workspace.pick(_ROWS, 5_000, 2_560)),
        "waiting",
        settings,
    )


ROW = Row(
    id="P16",
    sides={"a": with_kills, "b": without},
    claims=(
        Claim(
            "P16",
            "useful share of the wall time with 10 kills: distance from the share that recovery and repetition explain",
            of="explained_s",
            of_b="wall_s",
            unit="s",
            goal=0.05,
            at_least=False,
            compare=lambda explained, useful: abs(useful / explained - 1),
            geometric=False,
        ),
        Claim(
            "P16-goodput",
            "useful share of the wall time with 10 kills",
            of="wall_s",
            unit="s",
            goal=None,
            at_least=True,
            compare=lambda wall, useful: useful / wall,
        ),
    ),
    prepare=prepare,
    same=("weights",),
    others=(),
    pairs=3,  # each takes about five minutes
    warm_up=False,
    timeout_s=1800.0,
)
