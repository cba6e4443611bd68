"""Paired comparisons: mean, bootstrap interval, control, and the judgement at the interval's bad end."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
CONTROL_TOLERANCE = 0.03
_RESAMPLES = 9999


class Estimate(NamedTuple):
    """A mean over pairs with its interval at :data:`CONFIDENCE`; without an interval when there is one pair."""

    mean: float
    low: float
    high: float


def estimate(pairs: Sequence[float], geometric: bool) -> Estimate:
    """Mean of paired comparisons with a percentile bootstrap interval; the resampling is seeded.

    Raises ValueError for no pairs, and for numbers that have no logarithm when `geometric`.
    """
    from scipy.stats import bootstrap

    if not pairs or (geometric and min(pairs) <= 0):
        raise ValueError(f"no mean of {list(pairs)}")
    numbers = np.log(pairs) if geometric else np.asarray(pairs, float)
    back = math.exp if geometric else float
    mean = back(float(numbers.mean()))
    if len(pairs) == 1 or np.ptp(numbers) == 0:
        return Estimate(mean, mean, mean)
    interval = bootstrap(
        (numbers,),
        np.mean,
        confidence_level=CONFIDENCE,
        n_resamples=_RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(mean, back(float(interval.low)), back(float(interval.high)))


def control(neighbours: Sequence[tuple[float, float]]) -> float | None:
    """Geometric mean of the ratios of two runs of the same side, one after the other; 1 on a quiet machine."""
    if not neighbours or any(min(pair) <= 0 for pair in neighbours):
        return None
    return math.exp(float(np.mean([math.log(first / second) for first, second in neighbours])))


def is_void(of_control: float | None) -> bool:
    """Whether the machine was too restless to judge."""
    return of_control is not None and abs(of_control - 1) > CONTROL_TOLERANCE


def is_met(found: Estimate, goal: float, at_least: bool) -> bool:
    """Whether the goal holds at the bad end of the interval."""
    return found.low >= goal if at_least else found.high <= goal
