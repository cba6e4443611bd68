"""What a look needs to pass: how many standard deviations, and with which power; and why no result passes."""

from tasks.gate.measures import measure_of
from tasks.gate.signs import FLIPS, LEAST_P
from tasks.gate.spending import ROUNDING, joint_spent
from training.records import Look

POWER_Z = 0.8416  # quantile of the normal distribution for 80 % power
_FRESH = "test on fresh rows under another model name"


def critical(look: Look) -> float | None:
    """Number of standard deviations that the statistic must exceed to pass; None when no result passes."""
    from scipy.stats import norm

    ways = [look.boundary] if look.boundary is not None else []
    if level_is_reachable(look):
        ways.append(float(norm.isf(look.level)))
    return min(ways) if ways else None


def level_is_reachable(look: Look) -> bool:
    """Whether the p-value of the look's test can be as small as `look.level`."""
    by_flips = look.question != "not_worse" and measure_of(look).better_by_flips
    return look.level >= LEAST_P if by_flips else look.level > 0


def obstacle(look: Look) -> str:
    """Why no result passes, and which settings change that: sentences that begin with a full stop.

    Empty when some result passes.
    """
    if critical(look) is not None:
        return ""
    if look.level > 0:
        text = (
            f". {FLIPS:,} random sign flips can't show a p-value below {LEAST_P:.5f}: lower gate.confidence"
        )
        return text + (" or gate.horizon" if _shorter_horizon_helps(look) else "")
    if look.error_control == "joint":
        text = ". Comparisons under gate.error_control=strict have spent what this comparison may use: lower "
        return f"{text}gate.confidence, or {_FRESH}"
    if look.alpha - look.spent > ROUNDING:
        return f". Set gate.horizon above {look.number:,}"
    text = (
        ". The error that gate.confidence allows is spent, and a larger gate.horizon alone adds none: lower "
    )
    return f"{text}gate.confidence and set gate.horizon above {look.number:,}, or {_FRESH}"


def _shorter_horizon_helps(look: Look) -> bool:
    """Whether, with the shortest horizon, a p-value of sign flips can reach the next look's level."""
    strict = look.error_control == "strict"
    most = look.alpha if strict else joint_spent(look.number + 1, look.alpha, 1)
    return most - look.spent >= LEAST_P
