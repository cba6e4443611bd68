"""Correct the selection bias (winner's curse) of a promoted candidate's measured gain and accuracy.

A candidate is promoted when its measured gain exceeds a boundary, so the measured gain of promoted candidates is too
high on average.
"""

import math

from tasks.gate.needed import critical
from training.records import Choice, Look


def corrected_gain(look: Look) -> float:
    """Gain in accuracy, corrected for selection by the boundary; between 0 and the measured gain.

    The median-unbiased estimate for a normal distribution truncated at the boundary: the true gain at which half of
    the passing candidates would measure more than this candidate. The estimate is too high as often as too low,
    unless the true gain is so small that the estimate is cut off at 0. J. Lee et al., Annals of Statistics 44 (2016)
    907-927.
    """
    from scipy.optimize import brentq
    from scipy.stats import norm

    z = critical(look)
    deviation = math.sqrt(look.gained + look.lost) / look.rows
    if z is None or not deviation or look.difference <= 0:
        return max(0.0, look.difference)
    measured = look.difference / deviation
    boundary = min(z, measured)

    def surplus(mean: float) -> float:
        """Log of twice the probability that a passing candidate with true gain `mean` measures more than this one."""
        return float(norm.logsf(measured - mean) - norm.logsf(boundary - mean)) + math.log(2)

    if surplus(0.0) >= 0:
        return 0.0
    return min(look.difference, float(brentq(surplus, 0.0, measured + 1)) * deviation)


def choice_of(look: Look, accuracy: float) -> Choice:
    """Measured and corrected gain and accuracy of a candidate that passed `look`; `accuracy` is the measured one.

    Chance that raises the difference raises the candidate and lowers the reference by the same amount on average, so
    half of the gain's correction applies to the candidate's accuracy.
    """
    gain = corrected_gain(look)
    return Choice(
        gain=look.difference,
        corrected_gain=gain,
        accuracy=accuracy,
        corrected_accuracy=accuracy - (look.difference - gain) / 2,
    )
