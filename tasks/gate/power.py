"""What gain a number of test rows can show at all, before a comparison; for `evergreen plan`."""

import math

from tasks.gate.needed import POWER_Z
from training.records import Look

_BOUNDARY = 3.2  # standard deviations, typical of a reign
_DIFFERENT = 0.06  # share of the rows on which two classifiers typically differ


def smallest_gain(rows: int, look: Look | None) -> float:
    """The true gain that passes "better" on `rows` test rows with 80 % power, between 0 and 1.

    By R. Connor's formula (:func:`tasks.problems.classification.measures.rows_needed`), solved for the gain, for the
    share of rows on which the two models of `look` differ or, without it, for a typical share of 6 %. For another
    metric up to 1, by the standard error of that comparison's difference.
    """
    total = _BOUNDARY + POWER_Z
    if look is not None and look.standard_error:
        return total * look.standard_error * math.sqrt(look.rows / rows)
    share = _DIFFERENT if look is None else max((look.gained + look.lost) / look.rows, 1 / look.rows)
    return min(1.0, max(total * math.sqrt(share / rows), _BOUNDARY**2 / rows))


def power_text(rows: int, metric: str, policy: str, look: Look | None) -> str:
    """A sentence about that gain; `metric` names the metric, `policy` is `gate.policy`."""
    points = 100 * smallest_gain(rows, look)
    source = (
        "models that differ on 6 % of the rows" if look is None else "models that differ as the last two did"
    )
    text = f"{rows:,} test rows: a gain in {metric} below about {points:.2g} points can hardly be shown ({source})"
    if policy == "better" and points > 2:
        text += "; test on more rows, or take each newer model that is not shown to be worse: gate.policy=unless_worse"
    return text
