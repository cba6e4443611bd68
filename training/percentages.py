"""Shares as text: a share that is not 0 or 1 is never written as one of them."""

import math

_MOST_DECIMALS = 9


def share_text(share: float, decimals: int = 4) -> str:
    """A share between 0 and 1 with `decimals` decimals, or as many as tell the share from 0 and from 1."""
    return _distinct(share, 1.0, decimals)


def percent_text(share: float, decimals: int = 2) -> str:
    """A share between 0 and 1 in percent, without the sign, with decimals as in :func:`share_text`."""
    return _distinct(100 * share, 100.0, decimals)


def _distinct(value: float, whole: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    if (
        math.isfinite(value)
        and 0 < value < whole
        and decimals < _MOST_DECIMALS
        and float(text) in (0.0, whole)
    ):
        return _distinct(value, whole, decimals + 1)
    return text
