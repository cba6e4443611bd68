"""N2: cost of the replay check: a training with and without it, as a share of a training of one minute.

The check runs once per training, whatever its length, so a short training measures the check's seconds with less
noise than a training of a minute. Both sides run on Ray with two workers, as `evergreen retrain` starts them, and
must produce the same weights. A second line uses the seconds that the check itself recorded, instead of the
difference between two trainings.
"""

from benchmarks.harness.row import Claim, Outcome, Place, Row

_MINUTE_S = 60.0


def prepare(place: Place) -> None:
    """Prepare the dataset version."""
    from benchmarks.baselines.trainings import version_of

    version_of(place.data, _rows(place))


def with_check(place: Place) -> Outcome:
    """A: after the first checkpoint, a new model repeats the steps, and its state is compared."""
    return _trained(place, replay=True)


def without(place: Place) -> Outcome:
    """B: without the replay check."""
    return _trained(place, replay=False)


def _trained(place: Place, replay: bool) -> Outcome:
    from benchmarks.baselines.kills import newest_step_at
    from benchmarks.baselines.on_ray import launch_on_ray
    from benchmarks.baselines.trainings import job_of, version_of, what_was_done
    from training.attempts.history import read_attempts

    settings = {
        "training": {"epochs": place.pick(3, 2, 1), "global_batch_size": 128, "select": "last"},
        "scaling": {"num_workers": 2},
        "checkpoint": {"replay": replay},
    }
    job = job_of(place.own / "home", version_of(place.data, _rows(place)), "resnet", settings)
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


def _rows(place: Place) -> int:
    return place.pick(1280, 1280, 512)


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
