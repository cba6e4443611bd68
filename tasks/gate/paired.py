"""Tests of two models on the same rows, one comparison at a time: exact, and pure functions of counts."""

import math
from collections.abc import Sequence


def mcnemar(favourable: int, opposite: int) -> float:
    """How likely luck alone puts `favourable` or more of all discordant rows on one side.

    The one-sided test of Q. McNemar, Psychometrika 12 (1947) 153-157, with exact binomial probabilities; 1
    when the models never disagree.
    """
    from scipy.stats import binomtest

    if favourable + opposite == 0:
        return 1.0
    return float(binomtest(favourable, favourable + opposite, 0.5, alternative="greater").pvalue)


def difference_bound(gained: int, lost: int, rows: int, z: float) -> float:
    """Lower confidence bound of the candidate's accuracy minus the reference's, paired on `rows`.

    `gained` rows only the candidate, `lost` rows only the reference got right; the lowest difference whose score is
    at most `z` standard deviations. The score interval of T. Tango, Statistics in Medicine 17 (1998) 891-908, with a
    continuity correction of half a row. Without the correction the error rate at 0.95 reaches 1.3 times the nominal
    one when few rows are discordant; with it, it stays below (the tests add up the exact probabilities). Wald's
    interval has no width without discordant rows.
    """
    from scipy.optimize import brentq

    excess = gained - lost - 0.5
    if rows + excess <= 0:  # every row lost: no difference is too low to be believed
        return -1.0

    def surplus(difference: float) -> float:
        return excess - rows * difference - z * _deviation(gained, lost, rows, difference)

    return float(brentq(surplus, -1.0, excess / rows, xtol=1e-12))


def margin_score(gained: int, lost: int, rows: int, margin: float) -> float:
    """Tango's score of the hypothesis that the difference is -`margin`, in standard deviations, less half a row.

    It is above z exactly when :func:`difference_bound` at z is above -`margin`. 0 when nothing could vary.
    """
    deviation = _deviation(gained, lost, rows, -margin)
    return (gained - lost - 0.5 + rows * margin) / deviation if deviation else 0.0


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number, so that the chance of any false alarm is the level at most.

    S. Holm, Scandinavian Journal of Statistics 6 (1979) 65-70.
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def _deviation(gained: int, lost: int, rows: int, difference: float) -> float:
    """Standard deviation of (gained - lost) when the true difference is `difference`.

    `share`, the probability of a lost row, is its maximum-likelihood estimate under that constraint (Tango's
    q21).
    """
    a = 2 * rows
    b = (a - gained + lost) * difference - gained - lost
    c = -lost * difference * (1 - difference)
    share = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
    return math.sqrt(max(0.0, rows * (2 * share + difference * (1 - difference))))
