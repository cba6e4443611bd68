"""Shares as text."""

import math

import pytest

from training.percentages import percent_text, share_text


@pytest.mark.parametrize(
    ("share", "percent", "decimal"),
    [
        (0.0, "0.00", "0.0000"),
        (1.0, "100.00", "1.0000"),
        (0.12345, "12.35", "0.1235"),
        (0.99997, "99.997", "0.99997"),
        (0.999999, "99.9999", "0.999999"),
        (0.00001, "0.001", "0.00001"),
        (1 - 1e-12, "100.000000000", "1.000000000"),
        (-0.00001, "-0.00", "-0.0000"),
        (math.nan, "nan", "nan"),
    ],
)
def test_a_share_that_is_not_whole_is_not_written_as_whole(share: float, percent: str, decimal: str) -> None:
    assert (percent_text(share), share_text(share)) == (percent, decimal)
