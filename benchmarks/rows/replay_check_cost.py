"""N2: cost of the replay check: a training with and without it, as a share of a training of one minute.

The check runs once per training, whatever its length, so a short training measures the check's seconds with less
noise than a training of a minute. Both sides run on Ray with two workers, as `evergreen retrain` starts them, and
must produce the same weights. A second line uses the seconds that the check itself recorded, instead of the
difference between two trainings.
"""

from benchmarks.harness.row import Claim, Outcome, Row, Workspace

_MINUTE_S = 60.0


def prepare(workspace: Workspace) -> None:
    """Prepare the dataset version."""
    from benchmarks.baselines.trainings import version_of

    version_of(workspace.data, _rows(workspace))


def with_check(workspace: Workspace) -> Outcome:
    """A: after the first checkpoint, a new model repeats the steps, and its state is compared."""
    return _trained(workspace, replay=True)


def without(workspace: Workspace) -> Outcome:
    """B: without the replay check."""
    return _trained(workspace, replay=False)


def _trained(workspace: Workspace, replay: bool) -> Outcome:
    from benchmarks.baselines.kills import newest_step_at
    from benchmarks.baselines.on_ray import launch_on_ray
    from benchmarks.baselines.trainings import job_of, version_of, what_was_done
    from training.attempts.history import read_attempts

    settings = {
        "training": {"epochs": workspace.pick(3, 2, 1), "global_batch_size": 128, "select": "last"},
        "scaling": {"num_workers": 2},
        "checkpoint": {"replay": replay},
    }
    job = job_of(workspace.own / "home", version_of(workspace.data, _rows(workspace)), "resnet", settings)
    trained = launch_on_ray(job)
    if replay and not trained.reproducible:
        raise RuntimeError(f"the training is not reproducible: {trained.reproducible_reason}")
    ended = newest_step_at(job.paths.metrics)
    assert ended is not None
    seconds = ended - read_attempts(job.paths)[0].ready
    rest = seconds - trained.goodput.parts.get("replay check", 0.0)
    return Outcome({"seconds": seconds, "rest": rest}, what_was_done(trained))


def _longer(with_check: float, without: float) -> float:
    """Duration of a one-minute training plus the difference in seconds, divided by one minute."""
    return 1 + (with_check - without) / _MINUTE_S


def _rows(workspace: Workspace) -> int:
    return workspace.pick(1280, 1280, 512)


ROW = Row(
    id="N2",
    sides={"a": with_check, "b": without},
    claims=(
        Claim(
            "N2",
            "a training of one minute with the replay check / without",
            of="seconds",
            unit="s",
            goal=1.01,
            at_least=False,
            compare=_longer,
        ),
        Claim(
            "N2-recorded",
            "the same, from the seconds that the check recorded",
            of="seconds",
            of_b="rest",
            b="a",
            unit="s",
            goal=1.01,
            at_least=False,
            compare=_longer,
        ),
    ),
    prepare=prepare,
    same=("rows", "checksums", "weights"),
    others=(),
    warm_up=False,
)
