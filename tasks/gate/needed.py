"""How far a failed comparison was from passing: the measured gain, or the number of test rows, that would pass."""

import math

from training.records import Look

_POWER_Z = 0.8416  # quantile of the normal distribution for 80 % power


def critical(look: Look) -> float | None:
    """Number of standard deviations that the statistic must exceed to pass; None when the reign's level is spent."""
    from scipy.stats import norm

    ways = [look.boundary] if look.boundary is not None else []
    if look.level > 0:
        ways.append(float(norm.isf(look.level)))
    return min(ways) if ways else None


def gain_needed(look: Look) -> float | None:
    """Smallest gain in accuracy that passes on these rows with as many discordant rows; None when no gain passes."""
    z = critical(look)
    if z is None:
        return None
    # A gain of w rows needs at least w discordant rows, and w / sqrt(w) > z only for w > z**2.
    rows = max(z * math.sqrt(look.gained + look.lost), z * z)
    return (math.floor(rows) + 1) / look.rows


def rows_needed(look: Look) -> int | None:
    """Number of test rows at which a true difference equal to the measured one passes with 80 % power.

    None when no number of rows is enough. For question "not_worse" the difference d includes the margin.
    Accuracy: ((z sqrt(q) + 0.84 sqrt(q - d^2)) / d)^2 for a share q of discordant rows; R. Connor, Biometrics 43
    (1987) 207-211.
    Squared error: n ((z + 0.84) s / d)^2 for n rows on which the mean difference d has the standard error s.
    """
    z = critical(look)
    if look.measure == "squared_error":
        return _rows_for_error(look, z)
    difference = look.difference + look.margin
    if z is None or difference <= 0:
        return None
    share = max((look.gained + look.lost) / look.rows, abs(difference), z * z / look.rows)
    spread = z * math.sqrt(share) + _POWER_Z * math.sqrt(max(0.0, share - difference**2))
    return math.ceil((spread / difference) ** 2)


def error_needed(look: Look) -> float | None:
    """Largest RMSE that passes on these rows, if the differences spread as they do; None when no RMSE passes.

    Of a look at squared errors, by the normal approximation.
    """
    z = critical(look)
    if z is None:
        return None
    most = (1 + look.margin) * look.reference_error - z * look.standard_error
    return math.sqrt(most) if most > 0 else None


def _rows_for_error(look: Look, z: float | None) -> int | None:
    difference = look.difference + look.margin * look.reference_error
    if z is None or difference <= 0:
        return None
    return math.ceil(look.rows * ((z + _POWER_Z) * look.standard_error / difference) ** 2)
