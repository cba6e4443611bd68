"""Paired comparisons: mean, Student's t interval, spread between runs, and the judgement at the interval's bad end.

One process is one observation: what a process measures several times is averaged before it comes here.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
MOST_SPREAD = 0.15


class Estimate(NamedTuple):
    """A mean over pairs with its interval at :data:`CONFIDENCE`; one pair has no interval."""

    mean: float
    low: float | None
    high: float | None


def estimate(pairs: Sequence[float], geometric: bool) -> Estimate:
    """Mean of paired comparisons with Student's t interval, of the logarithms when `geometric`.

    A percentile bootstrap of five pairs covers 83 % instead of 95 %; the t interval keeps its coverage for numbers
    that are close to normal. Raises ValueError for no pairs, and for numbers that have no logarithm when `geometric`.
    """
    from scipy.stats import t

    if not pairs or (geometric and min(pairs) <= 0):
        raise ValueError(f"no mean of {list(pairs)}")
    numbers = np.log(pairs) if geometric else np.asarray(pairs, float)
    back = math.exp if geometric else float
    mean = float(numbers.mean())
    if len(pairs) == 1:
        return Estimate(back(mean), None, None)
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(pairs) - 1) * numbers.std(ddof=1) / math.sqrt(len(pairs)))
    return Estimate(back(mean), back(mean - half), back(mean + half))


def average(values: Sequence[float], geometric: bool) -> float:
    """What one process measured several times, as one observation."""
    return math.exp(float(np.mean(np.log(values)))) if geometric else float(np.mean(values))


def spread(neighbours: Sequence[tuple[float, float]]) -> float | None:
    """Standard deviation of one run, as a share, from pairs of runs of the same side that followed each other.

    Differences of neighbours leave out a slow drift of the machine, which alternation takes out of the ratios as well:
    sqrt(mean(log(first / second)^2) / 2). None without such pairs.
    """
    if not neighbours or any(min(pair) <= 0 for pair in neighbours):
        return None
    logs = [math.log(first / second) for first, second in neighbours]
    return math.sqrt(float(np.mean(np.square(logs))) / 2)


def is_void(of_side: float | None) -> bool:
    """Whether runs of the same side differ too much to judge by."""
    return of_side is not None and of_side > MOST_SPREAD


def is_met(found: Estimate, goal: float, at_least: bool) -> bool | None:
    """Whether the goal holds at the bad end of the interval; None without an interval."""
    if found.low is None or found.high is None:
        return None
    return found.low >= goal if at_least else found.high <= goal
