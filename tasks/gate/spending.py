"""How much of the allowed error a reign has spent after so many comparisons.

A *reign* is the time in which one version is the reference of the comparisons; a *look* is one comparison in it. Over
a reign, the probability that a candidate that is not better passes is to stay at `alpha` = 1 - gate.confidence.
"""

_HALF_SPENT = 100 / 365  # share of the horizon after which joint spending has used half of alpha


def joint_spent(looks: int, alpha: float, horizon: int) -> float:
    """Level spent after `looks` looks: alpha * k / (k + c), with c = 100 for a horizon of 365.

    Hyperbolic spending never runs out, and leaves a hundredth look about a fourth of what the first one has. Spending
    functions: K. Lan and D. DeMets, Biometrika 70 (1983) 659-663.
    """
    return alpha * looks / (looks + horizon * _HALF_SPENT)


def strict_level(looks: int, spent: float, alpha: float, horizon: int) -> float:
    """Level of the next look when `looks` were taken and `spent` of alpha is gone: an equal share of what is left.

    The levels of a reign add up to alpha at most, so by Bonferroni's inequality they hold whatever the dependence
    between looks. 0 once the horizon is reached.
    """
    left = horizon - looks
    return max(0.0, alpha - spent) / left if left > 0 else 0.0
