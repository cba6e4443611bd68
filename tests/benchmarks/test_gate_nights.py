"""Simulated nights: a small part of `python -m benchmarks.gate`, whose tables are in docs/gate.md."""

import numpy as np
import pytest

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


def promoted(found: list[Year]) -> float:
    return float(np.mean([bool(year.promotions) for year in found]))


def test_one_right_test_a_night_adds_up_to_a_wrong_promise() -> None:
    assert promoted(years("each night")) > 0.25


@pytest.mark.parametrize("rule", ["joint", "strict"])
def test_equal_models_seldom_replace_a_champion_in_many_nights(rule: Rule) -> None:
    """At 5 % a year, 4 or more of 24 years have a probability of 3 %, even if these nights spent the whole budget."""
    assert promoted(years(rule)) <= 3 / 24


def test_candidates_that_are_truly_better_are_found_within_a_month() -> None:
    found = years("joint", gain=0.04)
    waits = [next((one.night for one in year.promotions if one.better), _NIGHTS) for year in found]
    assert np.mean(np.array(waits) <= 30) > 0.8


def test_candidates_that_lose_the_whole_margin_seldom_pass_not_worse() -> None:
    settings = GateSettings(policy="not_worse", margin=0.03)
    assert promoted(years("joint", gain=-0.03, settings=settings)) <= 3 / 24
    assert promoted(years("joint", gain=0.02, settings=settings)) > 0.8
