"""Text of a confidence interval, or of why there is no interval."""

import math
from collections.abc import Callable

from training.records import Score

_SAME = 1e-9  # limits that differ by rounding alone


def interval_text(score: Score, spell: Callable[[float], str], errors: str, assumed: str = "") -> str:
    """The interval for a model's description: "95 % confidence: 1 to 2", without line breaks before percent signs.

    `errors` names what must vary to give an interval, such as "the errors of the test rows"; `assumed` is what the
    interval assumes.
    """
    if _is_empty(score):
        return _none(errors)
    level = f"{100 * score.confidence:.6g}\N{NO-BREAK SPACE}%"
    assumption = f", {assumed}" if assumed else ""
    return f"{level} confidence: {spell(score.low)} to {spell(score.high)}{assumption}"


def interval_in_log(score: Score, spell: Callable[[float], str], errors: str) -> str:
    """The interval for a line of the log: "1 to 2 at 95% confidence"; `errors` as in :func:`interval_text`."""
    if _is_empty(score):
        return _none(errors)
    return f"{spell(score.low)} to {spell(score.high)} at {100 * score.confidence:g}% confidence"


def _is_empty(score: Score) -> bool:
    """Whether the interval has no width: there is a single row, or all rows have the same error."""
    return math.isclose(score.low, score.high, rel_tol=_SAME)


def _none(errors: str) -> str:
    return f"no interval: {errors} do not vary"
