"""Simulated nights: a small part of `python -m benchmarks.gate`, whose tables are in docs/gate.md."""

import numpy as np
import pytest
from scipy.stats import binomtest

from benchmarks.gate.__main__ import EQUAL, LOSSES, POWER, Line
from benchmarks.gate.nights import Nights, Rule, World, Year
from training.settings.schema import GateSettings

_NIGHTS, _YEARS = 80, 24
_WORLD = World(400, 0.06)


def years(rule: Rule, gain: float = 0.0, settings: GateSettings | None = None) -> list[Year]:
    """Simulated years with equal or better candidates; the same models for each rule."""
    gains = np.full(_NIGHTS, gain)
    chosen = settings or GateSettings()
    return [
        Nights(_WORLD, chosen, rule, np.random.default_rng(seed)).live(_NIGHTS, gains)
        for seed in range(_YEARS)
    ]


def promoted(simulated_years: list[Year]) -> float:
    return float(np.mean([bool(year.promotions) for year in simulated_years]))


def test_one_right_test_a_night_adds_up_to_a_wrong_promise() -> None:
    assert promoted(years("each night")) > 0.25


@pytest.mark.parametrize("rule", ["joint", "strict"])
def test_equal_models_seldom_replace_a_champion_in_many_nights(rule: Rule) -> None:
    """At 5 % a year, 4 or more of 24 years have a probability of 3 %, even if these nights spent the whole budget."""
    assert promoted(years(rule)) <= 3 / 24


@pytest.mark.extended
def test_candidates_that_are_truly_better_are_found_within_a_month() -> None:
    simulated_years = years("joint", gain=0.04)
    waits = [
        next((promotion.night for promotion in year.promotions if promotion.better), _NIGHTS)
        for year in simulated_years
    ]
    assert np.mean(np.array(waits) <= 30) > 0.8


@pytest.mark.extended
def test_candidates_that_lose_the_whole_margin_seldom_pass_not_worse() -> None:
    settings = GateSettings(policy="not_worse", margin=0.03)
    assert promoted(years("joint", gain=-0.03, settings=settings)) <= 3 / 24
    assert promoted(years("joint", gain=0.02, settings=settings)) > 0.8


# --- the promises of docs/gate.md, on the lines of its tables


def line(lines: tuple[Line, ...], name: str) -> Line:
    (named_line,) = [entry for entry in lines if entry.name == name]
    return named_line


def low_and_high(count: int, of: int) -> tuple[float, float]:
    """Wilson's 99 % interval of a proportion."""
    interval = binomtest(count, of).proportion_ci(0.99, method="wilson")
    return interval.low, interval.high


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["joint", "strict"])
def test_in_a_year_equal_models_do_not_replace_a_champion_in_more_than_5_percent(rule: str) -> None:
    years = 100
    simulated_years = line(EQUAL, f"{rule}, 1,000 rows").years(seed=1, count=years)
    low, _ = low_and_high(sum(bool(year.promotions) for year in simulated_years), years)
    assert low <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("since", [1, 100])
def test_two_points_on_10000_rows_are_not_found_in_less_than_90_percent_of_first_nights(since: int) -> None:
    chosen, years = line(POWER, f"joint, 10,000 rows, from night {since}"), 40
    nights = [
        next((promotion.night for promotion in year.promotions if promotion.better), None)
        for year in chosen.years(seed=1, count=years)
    ]
    _, high = low_and_high(sum(night == since for night in nights), years)
    assert high >= 0.9


@pytest.mark.slow
def test_small_losses_do_not_add_up_over_a_year() -> None:
    chosen = line(LOSSES, "each candidate 0.02 points worse than the last, 10,000 rows")
    lost = [-year.gain for year in chosen.years(seed=1, count=8)]
    assert np.mean(lost) <= 0.01  # twice the margin of half a point; 365 such losses are 7 points
