"""Text of shares, differences and p-values in the gate's explanations."""

from training.percentages import percent_text

POWER = "(80 % power)"  # probability of passing that `tasks.gate.needed.POWER_Z` gives
TOO_FEW = "too few to show a change within gate.margin"


def percent(share: float) -> str:
    """A share in percent."""
    return f"{percent_text(share)} %"


def points(change: int, rows: int) -> str:
    """`change` rows, as a share of `rows`, in percentage points with the sign."""
    return f"{100 * change / rows:+.2f} points"


def p_value(p: float) -> str:
    """A p-value, cut off at 0.0001."""
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.2g}"
