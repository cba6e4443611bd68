"""The correction of numbers that were looked at because they were high.

A candidate is promoted when its measured gain exceeds a boundary, so the measured gain of promoted candidates is too
high on average: the winner's curse.
"""

import math

from tasks.gate.needed import critical
from training.records import Choice, Look


def corrected_gain(look: Look) -> float:
    """Gain in accuracy, corrected for having exceeded the boundary; between 0 and the measured gain.

    The median-unbiased estimate of a normal distribution truncated at the boundary: the gain at which half of the
    candidates that pass measure more than this one did. As often too high as too low, unless the true gain is so
    near 0 that the estimate ends there. J. Lee et al., Annals of Statistics 44 (2016) 907-927.
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
        """Log probability that a candidate which passes measures more than this one, against one half."""
        return float(norm.logsf(measured - mean) - norm.logsf(boundary - mean)) + math.log(2)

    if surplus(0.0) >= 0:
        return 0.0
    return min(look.difference, float(brentq(surplus, 0.0, measured + 1)) * deviation)


def choice_of(look: Look, accuracy: float) -> Choice:
    """What is left of `accuracy` and of the gain of a candidate that passed `look`.

    Chance that lifts a difference lifts the candidate and lowers the reference by the same amount on average: half
    of the gain's correction is the candidate's.
    """
    gain = corrected_gain(look)
    return Choice(
        gain=look.difference,
        corrected_gain=gain,
        accuracy=accuracy,
        corrected_accuracy=accuracy - (look.difference - gain) / 2,
    )
