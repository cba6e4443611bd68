"""Statistical tests of two models on the same rows, for a single comparison; pure functions of row counts."""

import math
from collections.abc import Sequence


def mcnemar(favourable: int, opposite: int) -> float:
    """McNemar's exact one-sided test: the p-value of `favourable` rows among all discordant rows.

    The p-value is the probability that chance alone puts `favourable` or more of the discordant rows on one side. Q.
    McNemar, Psychometrika 12 (1947) 153-157, with binomial probabilities. 1 when the models never disagree.
    """
    from scipy.stats import binomtest

    if favourable + opposite == 0:
        return 1.0
    return float(binomtest(favourable, favourable + opposite, 0.5, alternative="greater").pvalue)


def difference_bound(gained: int, lost: int, rows: int, z: float) -> float:
    """Lower confidence bound of the candidate's accuracy minus the reference's, paired on `rows` rows.

    `gained` rows only the candidate got right, `lost` rows only the reference. The bound is the lowest difference
    whose score is at most `z` standard deviations: the score interval of T. Tango, Statistics in Medicine 17 (1998)
    891-908, with a continuity correction of half a row. Without the correction the error rate at 0.95 reaches 1.3
    times the nominal rate when few rows are discordant; with the correction it stays below the nominal rate (the
    tests add up the exact probabilities). Wald's interval is not used: without discordant rows its width is zero.
    """
    from scipy.optimize import brentq

    excess = gained - lost - 0.5
    if rows + excess <= 0:  # every row lost: even a difference of -1 is plausible
        return -1.0

    def surplus(difference: float) -> float:
        return excess - rows * difference - z * _deviation(gained, lost, rows, difference)

    return float(brentq(surplus, -1.0, excess / rows, xtol=1e-12))


def margin_score(gained: float, lost: float, rows: float, margin: float) -> float:
    """Tango's score of the hypothesis that the difference is -`margin`, in standard deviations.

    Includes the continuity correction of half a row. The score is above z exactly when :func:`difference_bound` at z
    is above -`margin`. 0 when the standard deviation is 0.
    """
    deviation = _deviation(gained, lost, rows, -margin)
    return (gained - lost - 0.5 + rows * margin) / deviation if deviation else 0.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for multiple testing: the probability of any false rejection is then at most the level.

    S. Holm, Scandinavian Journal of Statistics 6 (1979) 65-70.
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def _deviation(gained: float, lost: float, rows: float, difference: float) -> float:
    """Standard deviation of (gained - lost) when the true difference is `difference`.

    `share` is the maximum-likelihood estimate of the probability of a lost row under that constraint (Tango's q21).
    """
    a = 2 * rows
    b = (a - gained + lost) * difference - gained - lost
    c = -lost * difference * (1 - difference)
    share = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
    return math.sqrt(max(0.0, rows * (2 * share + difference * (1 - difference))))
