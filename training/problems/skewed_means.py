"""The mean of independent values whose distribution may be skewed, such as squared errors."""

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

_STRAIGHT = 1e-9  # below this skewness the transformation is the identity, up to rounding


def mean_interval(values: Numbers, confidence: float) -> tuple[float, float]:
    """Two-sided confidence interval of the mean of independent values whose distribution may be skewed.

    P. Hall, "On the removal of skewness by transformation", Journal of the Royal Statistical Society B 54 (1992)
    221-228, the cubic transformation, as in X. Zhou and S. Gao, The American Statistician 54 (2000) 100-104. Squared
    errors are skewed: Student's interval would be too low. Both limits are the mean when all values are equal.
    """
    mean, deviation = float(values.mean()), float(values.std())
    if not deviation:
        return mean, mean
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    skewness = _skewness(values, mean, deviation)
    low, high = (mean - deviation * _untransformed(quantile, skewness, len(values)) for quantile in (z, -z))
    return min(low, mean), max(high, mean)


def skewness_corrected(values: Numbers) -> float:
    """The mean of `values` in standard errors, transformed as in :func:`mean_interval`; 0 when all values are 0.

    Near a standard normal distribution if the true mean is 0, also when the values are skewed. Infinite, with the sign
    of the mean, when all values are equal.
    """
    mean, deviation = float(values.mean()), float(values.std())
    if not deviation:
        return math.copysign(math.inf, mean) if mean else 0.0
    share, rows = mean / deviation, len(values)
    third = _skewness(values, mean, deviation) / 3
    return math.sqrt(rows) * (share + third * share**2 + third**2 * share**3 / 3 + third / (2 * rows))


def _untransformed(z: float, skewness: float, rows: int) -> float:
    """The inverse of the transformation in :func:`skewness_corrected`, without the factor sqrt(rows)."""
    third = skewness / 3
    target = z / math.sqrt(rows) - third / (2 * rows)
    if abs(third) < _STRAIGHT:
        return target
    return float(np.cbrt(1 + 3 * third * target) - 1) / third


def _skewness(values: Numbers, mean: float, deviation: float) -> float:
    return float((((values - mean) / deviation) ** 3).mean())
