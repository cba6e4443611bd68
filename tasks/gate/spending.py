"""Error spending: how much of the allowed error level alpha a reign has spent after a number of comparisons.

A *reign* is the time in which one version is the reference of comparisons; a *look* is one comparison of a reign.
Over a reign, the probability that any candidate that is not better passes must be at most `alpha` = 1 -
`gate.confidence`.
"""

_HALF_SPENT = 100 / 365  # share of the horizon after which joint spending has used half of alpha
# Levels below this are what rounding leaves of a level that is spent: sums of 5,000 levels are off by up to 1e-16.
ROUNDING = 1e-12


def joint_spent(looks: int, alpha: float, horizon: int) -> float:
    """Level spent after k = `looks` looks: alpha * k / (k + c), with c = 100 for a horizon of 365.

    Hyperbolic spending never uses up alpha; the 100th look gets about a fourth of the level of the first look.
    Spending functions: K. Lan and D. DeMets, Biometrika 70 (1983) 659-663.
    """
    return alpha * looks / (looks + horizon * _HALF_SPENT)


def strict_level(looks: int, spent: float, alpha: float, horizon: int) -> float:
    """Level of the next look after `looks` looks have spent `spent` of alpha: an equal share of the remaining level.

    The levels of a reign add up to at most alpha, so by Bonferroni's inequality the error is controlled for every
    dependence between looks. 0 once `horizon` looks were taken. These have spent alpha: with a larger `horizon`, the
    level stays 0.
    """
    left, remaining = horizon - looks, alpha - spent
    return remaining / left if left > 0 and remaining > ROUNDING else 0.0
