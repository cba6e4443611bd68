"""Means, intervals, spread and judgement of the benchmark harness."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness.statistics import Estimate, average, estimate, is_met, is_void, spread

RATIOS = st.lists(st.floats(0.01, 100), min_size=1, max_size=12)


def test_geometric_mean_of_ratios_and_their_inverses_cancel() -> None:
    assert estimate([2.0, 0.5, 4.0, 0.25], geometric=True).mean == pytest.approx(1.0)


def test_arithmetic_mean_for_differences() -> None:
    assert estimate([-1.0, 0.0, 4.0], geometric=False).mean == pytest.approx(1.0)


@given(RATIOS)
def test_turning_a_ratio_round_turns_its_interval_round(ratios: list[float]) -> None:
    original, turned = estimate(ratios, True), estimate([1 / ratio for ratio in ratios], True)
    assert 1 / turned.mean == pytest.approx(original.mean)
    if len(ratios) > 1:
        assert original.low is not None
        assert turned.high is not None
        assert 1 / turned.high == pytest.approx(original.low, rel=1e-6)


@pytest.mark.parametrize("pairs", [3, 5, 12])
def test_interval_covers_the_truth_as_often_as_it_says(pairs: int) -> None:
    random = np.random.default_rng(3)
    samples = np.exp(random.normal(math.log(2.0), 0.1, (1000, pairs)))
    intervals = [estimate(list(row), True) for row in samples]
    hits = sum(
        interval.low <= 2.0 <= interval.high
        for interval in intervals
        if interval.low is not None and interval.high is not None
    )
    assert 0.93 <= hits / 1000 <= 0.97


def test_a_single_pair_has_no_interval_and_meets_no_goal() -> None:
    estimated = estimate([1.5], geometric=True)
    assert estimated == Estimate(pytest.approx(1.5), None, None)
    assert is_met(estimated, 1.0, at_least=True) is None


@pytest.mark.parametrize("pairs", [[], [1.0, 0.0], [-1.0]])
def test_refuses_what_has_no_logarithm(pairs: list[float]) -> None:
    with pytest.raises(ValueError, match="no mean"):
        estimate(pairs, geometric=True)


def test_what_one_process_measured_several_times_is_one_number() -> None:
    assert average([1.0, 4.0], geometric=True) == pytest.approx(2.0)
    assert average([1.0, 4.0], geometric=False) == pytest.approx(2.5)


def test_spread_is_the_standard_deviation_of_one_run() -> None:
    runs = np.exp(np.random.default_rng(0).normal(0, 0.05, (4000, 2)))
    assert spread([(first, second) for first, second in runs.tolist()]) == pytest.approx(0.05, rel=0.05)


def test_differences_that_cancel_are_spread_all_the_same() -> None:
    assert is_void(spread([(1.0, 1.5), (1.5, 1.0)]))
    assert not is_void(spread([(1.0, 1.01), (1.01, 1.0)]))


def test_without_neighbours_there_is_no_spread_and_nothing_void() -> None:
    assert spread([]) is None
    assert not is_void(None)


def test_a_goal_is_met_by_the_mean_with_an_interval_that_misses_it_by_little() -> None:
    estimated = Estimate(mean=1.0, low=0.96, high=1.04)
    assert is_met(estimated, 1.0, at_least=True)
    assert not is_met(estimated, 1.01, at_least=True)
    assert is_met(estimated, 1.0, at_least=False)
    assert not is_met(estimated, 0.99, at_least=False)
    wide = Estimate(mean=1.0, low=0.94, high=1.06)
    assert not is_met(wide, 1.0, at_least=True)
    assert not is_met(wide, 1.0, at_least=False)
