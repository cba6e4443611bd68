"""What a look needs to pass: how many standard deviations, and with which power."""

from training.records import Look

POWER_Z = 0.8416  # quantile of the normal distribution for 80 % power


def critical(look: Look) -> float | None:
    """Number of standard deviations that the statistic must exceed to pass; None when the reign's level is spent."""
    from scipy.stats import norm

    ways = [look.boundary] if look.boundary is not None else []
    if look.level > 0:
        ways.append(float(norm.isf(look.level)))
    return min(ways) if ways else None
