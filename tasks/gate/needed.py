"""What a comparison that failed would have needed: a larger measured difference, or more test rows."""

import math

from training.records import Look

_POWER_Z = 0.8416  # of the normal distribution: 80 % power


def critical(look: Look) -> float | None:
    """Standard deviations that are enough to pass, or None when the reign's level is spent."""
    from scipy.stats import norm

    ways = [look.boundary] if look.boundary is not None else []
    if look.level > 0:
        ways.append(float(norm.isf(look.level)))
    return min(ways) if ways else None


def gain_needed(look: Look) -> float | None:
    """The gain in accuracy that passes on these rows, if the models disagree on as many; None when no gain does."""
    z = critical(look)
    if z is None:
        return None
    # A gain of w rows has at least w rows that differ: w / sqrt(w) > z from z**2 rows on.
    rows = max(z * math.sqrt(look.gained + look.lost), z * z)
    return (math.floor(rows) + 1) / look.rows


def rows_needed(look: Look) -> int | None:
    """Test rows that show a true difference as large as the measured one, with 80 % power; None when none do.

    ((z sqrt(q) + 0.84 sqrt(q - d^2)) / d)^2 for a share q of rows that differ and a difference d; R. Connor,
    Biometrics 43 (1987) 207-211. Question "not_worse" has its margin to add to the difference.
    """
    z, difference = critical(look), look.difference + look.margin
    if z is None or difference <= 0:
        return None
    share = max((look.gained + look.lost) / look.rows, abs(difference), z * z / look.rows)
    spread = z * math.sqrt(share) + _POWER_Z * math.sqrt(max(0.0, share - difference**2))
    return math.ceil((spread / difference) ** 2)
