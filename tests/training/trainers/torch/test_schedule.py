"""The learning rate is a function of the step, and the optimizer sets it before each step."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training.trainers.own_loop.schedule import build_optimizer, learning_rate, set_learning_rate
from training.trainers.torch.settings import TrainingSettings

KINDS = ("constant", "cosine", "one_cycle", "step")
PEAK = 0.25


def rates(total: int, **options: Any) -> list[float]:
    settings = TrainingSettings(learning_rate=PEAK, **options)
    return [learning_rate(settings, step, total) for step in range(total)]


@given(kind=st.sampled_from(KINDS), warmup=st.floats(0, 0.99), total=st.integers(1, 300))
def test_rates_are_positive_and_at_most_the_peak(kind: str, warmup: float, total: int) -> None:
    assert all(0 < rate <= PEAK for rate in rates(total, schedule=kind, warmup_share=warmup))


@given(kind=st.sampled_from(KINDS), warmup=st.floats(0, 0.9), total=st.integers(20, 300))
def test_the_rate_rises_to_the_peak_and_never_again(kind: str, warmup: float, total: int) -> None:
    learning_rates = rates(total, schedule=kind, warmup_share=warmup)
    top = learning_rates.index(PEAK)
    share = max(warmup, 0.3) if kind == "one_cycle" else warmup
    assert top == round(share * total)
    rising = [second - first for first, second in pairwise(learning_rates[: top + 1])]
    assert all(math.isclose(step, PEAK / (top + 1), rel_tol=1e-6) for step in rising)
    assert all(second <= first for first, second in pairwise(learning_rates[top:]))


def test_a_constant_rate_stays() -> None:
    assert rates(10, schedule="constant", warmup_share=0) == [PEAK] * 10


@pytest.mark.parametrize("kind", ["cosine", "one_cycle"])
def test_a_cosine_is_halved_half_way_and_ends_near_zero(kind: str) -> None:
    learning_rates = rates(1000, schedule=kind, warmup_share=0.4)
    assert math.isclose(learning_rates[700], PEAK / 2)
    assert math.isclose(learning_rates[550], PEAK * 0.5 * (1 + math.sqrt(0.5)))
    assert 0 < learning_rates[-1] < PEAK * 1e-5


def test_steps_are_at_a_half_and_three_quarters() -> None:
    learning_rates = rates(8, schedule="step", warmup_share=0)
    assert learning_rates == pytest.approx([PEAK] * 4 + [PEAK / 10] * 2 + [PEAK / 100] * 2)


def test_torch_agrees_on_cosine() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    for rate in rates(50, schedule="cosine", warmup_share=0):
        assert math.isclose(rate, optimizer.param_groups[0]["lr"], rel_tol=1e-9)
        optimizer.step()
        reference.step()


@pytest.mark.parametrize(
    ("name", "kind"), [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam), ("sgd", torch.optim.SGD)]
)
def test_the_optimizer_is_the_one_asked_for(name: str, kind: type) -> None:
    settings = TrainingSettings(optimizer=name, learning_rate=PEAK, weight_decay=0.125, momentum=0.75)  # type: ignore[arg-type]
    optimizer = build_optimizer(settings, [torch.nn.Parameter(torch.zeros(1))])
    assert type(optimizer) is kind
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (PEAK, 0.125)
    assert group.get("momentum", 0.75) == 0.75


def test_the_rate_is_set_in_every_group() -> None:
    optimizer = torch.optim.SGD([{"params": [torch.nn.Parameter(torch.ones(1))]} for _ in range(2)], lr=PEAK)
    set_learning_rate(optimizer, 0.5)
    for group in optimizer.param_groups:
        group["params"][0].grad = torch.ones(1)
    optimizer.step()
    assert [group["params"][0].item() for group in optimizer.param_groups] == [0.5, 0.5]
