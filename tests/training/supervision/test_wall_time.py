"""The parts of a launch's wall time, when the machines' clocks differ."""

import pytest

from training.attempts.history import Attempt
from training.records import Goodput, TrainedModel
from training.supervision.launch import _with_wall_time


def attempt(number: int, ready: float) -> Attempt:
    return Attempt(
        number=number,
        group=1,
        began=ready,
        ready=ready,
        world_size=1,
        device="cpu",
        first_step=0,
        reached=0,
    )


@pytest.mark.parametrize(
    ("first_ready", "last_ready", "lost"), [(110.0, 130.0, 20.0), (110.0, 50.0, 0.0), (110.0, 9000.0, 60.0)]
)
def test_no_part_is_negative_or_longer_than_the_launch(
    first_ready: float, last_ready: float, lost: float
) -> None:
    """The first attempt was on a machine with the driver's time, the last one on a machine with another time."""
    trained = TrainedModel.model_construct(goodput=Goodput(total_s=40.0, parts={"compute": 40.0}))
    attempts = [attempt(1, first_ready), attempt(2, last_ready)]
    timed = _with_wall_time(trained, attempts, before=0, began=100.0, ended=200.0)
    assert timed.goodput.parts["lost to failures"] == lost
    assert min(timed.goodput.parts.values()) >= 0.0
    assert timed.goodput.total_s == sum(timed.goodput.parts.values()) == timed.seconds == 100.0
