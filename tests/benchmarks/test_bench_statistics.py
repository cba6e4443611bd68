"""Means, intervals, control and judgement of the benchmark harness."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness.statistics import Estimate, control, estimate, is_met, is_void

RATIOS = st.lists(st.floats(0.01, 100), min_size=1, max_size=12)


def test_geometric_mean_of_ratios_and_their_inverses_cancel() -> None:
    assert estimate([2.0, 0.5, 4.0, 0.25], geometric=True).mean == pytest.approx(1.0)


def test_arithmetic_mean_for_differences() -> None:
    assert estimate([-1.0, 0.0, 4.0], geometric=False).mean == pytest.approx(1.0)


@given(RATIOS)
def test_interval_holds_the_mean_and_lies_within_the_pairs(ratios: list[float]) -> None:
    found = estimate(ratios, geometric=True)
    assert min(ratios) * (1 - 1e-9) <= found.low <= found.mean * (1 + 1e-9)
    assert found.mean * (1 - 1e-9) <= found.high <= max(ratios) * (1 + 1e-9)


@given(RATIOS)
def test_turning_a_ratio_round_turns_its_interval_round(ratios: list[float]) -> None:
    found, turned = estimate(ratios, True), estimate([1 / ratio for ratio in ratios], True)
    assert 1 / turned.mean == pytest.approx(found.mean)
    assert 1 / turned.high == pytest.approx(found.low, rel=1e-6)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(3)
    samples = np.exp(random.normal(math.log(2.0), 0.1, (200, 12)))
    hits = sum(found.low <= 2.0 <= found.high for found in (estimate(list(row), True) for row in samples))
    assert 0.85 <= hits / 200 <= 0.99


def test_a_single_pair_has_no_width() -> None:
    assert estimate([1.5], geometric=True) == Estimate(*[pytest.approx(1.5)] * 3)


@pytest.mark.parametrize("pairs", [[], [1.0, 0.0], [-1.0]])
def test_refuses_what_has_no_logarithm(pairs: list[float]) -> None:
    with pytest.raises(ValueError, match="no mean"):
        estimate(pairs, geometric=True)


def test_control_of_a_drifting_machine_is_void() -> None:
    assert control([(1.0, 1.1), (2.0, 2.2)]) == pytest.approx(1 / 1.1)
    assert is_void(control([(1.0, 1.1), (2.0, 2.2)]))
    assert not is_void(control([(1.0, 1.1), (1.1, 1.0)]))


def test_without_neighbours_there_is_no_control_and_nothing_void() -> None:
    assert control([]) is None
    assert not is_void(None)


def test_a_goal_is_judged_at_the_bad_end() -> None:
    found = Estimate(mean=1.0, low=0.9, high=1.1)
    assert is_met(found, 0.9, at_least=True)
    assert not is_met(found, 0.95, at_least=True)
    assert is_met(found, 1.1, at_least=False)
    assert not is_met(found, 1.05, at_least=False)
