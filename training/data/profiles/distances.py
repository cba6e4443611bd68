"""Distances between two profiles of a column, and what chance alone would give."""

import math
from collections.abc import Mapping

import numpy as np

from training.profile_records import SHARES, ColumnProfile

# Kolmogorov's distance of two samples of n and m rows exceeds c * sqrt(1/n + 1/m) with a probability of about
# 2 * exp(-2 * c**2): one in 1.5 million here, as a table may have hundreds of columns on each of 365 nights.
_RARE = 2.7
_SIGMAS = 5.0
# The quantiles are 5 % apart, so that ties may hide so much of a distribution function.
_GRID = 0.05


def noise(rows: float, other: float) -> float:
    """What chance alone may add to a share or a distance of two samples with so many rows."""
    return _RARE * math.sqrt(1 / max(1.0, rows) + 1 / max(1.0, other))


def kolmogorov(reference: ColumnProfile, current: ColumnProfile) -> float:
    """The largest distance of the two distribution functions, which are linear between the quantiles; at most 1."""
    before, now = np.array(reference.quantiles), np.array(current.quantiles)
    points = np.union1d(before, now)
    sides = (np.nextafter(points, -np.inf), np.nextafter(points, np.inf))  # a value of many rows is a jump
    distances = [np.abs(np.interp(side, before, SHARES) - np.interp(side, now, SHARES)) for side in sides]
    return max(0.0, float(np.max(distances)) - _GRID)


def variation(reference: Mapping[str, float], current: Mapping[str, float]) -> float:
    """Total variation distance: the share of rows that would have to change their category."""
    names = reference.keys() | current.keys()
    return math.fsum(abs(reference.get(name, 0.0) - current.get(name, 0.0)) for name in names) / 2


def moved_most(reference: Mapping[str, float], current: Mapping[str, float]) -> str:
    """The category whose share moved most; of two that moved alike, the one that grew."""

    def moved(name: str) -> tuple[float, bool, str]:
        difference = current.get(name, 0.0) - reference.get(name, 0.0)
        return round(abs(difference), 9), difference > 0, name

    return max(reference.keys() | current.keys(), key=moved)


def variation_noise(shares: Mapping[str, float], rows: float, other: float) -> float:
    """What chance alone may give as :func:`variation` of two samples: its mean, and some standard deviations."""
    spread = math.sqrt(1 / max(1.0, rows) + 1 / max(1.0, other))
    mean = (
        math.fsum(math.sqrt(share * (1 - share)) for share in shares.values())
        * spread
        / math.sqrt(2 * math.pi)
    )
    return mean + _SIGMAS / 2 * spread


def is_rarer(share: float, rows: float, reference: float, other: float) -> bool:
    """Whether a share of `rows` rows differs from another sample's share by more than chance allows."""
    pooled = (share * rows + reference * other) / max(1.0, rows + other)
    deviation = math.sqrt(pooled * (1 - pooled) * (1 / max(1.0, rows) + 1 / max(1.0, other)))
    return abs(share - reference) > _SIGMAS * deviation


def log_noise(sizes: tuple[float, ...], rows: float, other: float) -> float:
    """What chance alone may change in the logarithm of a median, from the quartiles of the values.

    The standard error of a median is sqrt(pi/2) times that of a mean, for a normal distribution of the logarithms.
    """
    spread = (math.log(sizes[3]) - math.log(sizes[1])) / 1.349
    return _SIGMAS * math.sqrt(math.pi / 2) * spread * math.sqrt(1 / max(1.0, rows) + 1 / max(1.0, other))
