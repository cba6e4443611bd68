"""The gain that test rows can show, as `plan` says it."""

import pytest
from looks import from_counts, judged

from tasks.gate.power import power_text, smallest_gain
from tasks.problems.classification.measures import rows_needed
from training.settings.schema import GateSettings


def test_few_rows_show_large_gains_alone() -> None:
    assert 100 * smallest_gain(242, None) == pytest.approx(6.4, abs=0.1)
    assert power_text(242, "accuracy", "better", None) == (
        "242 test rows: a gain in accuracy below about 6.4 points can hardly be shown (models that differ on 6 % of "
        "the rows); test on more rows, or take each newer model that is not shown to be worse: gate.policy=unless_worse"
    )
    assert "unless_worse" not in power_text(100_000, "accuracy", "better", None)


def test_the_last_comparison_tells_how_much_two_models_differ() -> None:
    """A true gain as large as the one named would pass on about as many rows."""
    look = judged(from_counts((900, 60, 20, 20)), GateSettings()).looks[0]
    gain = smallest_gain(1000, look)
    rows = rows_needed(look.model_copy(update={"difference": gain, "boundary": 3.2}))
    assert rows == pytest.approx(1000, rel=0.03)
