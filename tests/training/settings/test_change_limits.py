"""Limits of the comparison with the champion's data, as settings give them."""

import pytest

from training.errors import SettingError
from training.settings.change_limits import DEFAULTS, limits_of
from training.settings.overrides import parse_assignments, resolve
from training.settings.schema import Settings


def test_a_limit_of_one_column_counts_for_this_column_alone() -> None:
    limits = limits_of(["scale=100", "body.weight.scale=inf"])
    assert limits.of("scale") == limits.of("scale", "height") == 100
    assert limits.of("scale", "body.weight") == float("inf")
    assert limits.of("missing", "body.weight") == DEFAULTS["missing"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unit=3", "no such limit"),
        ("scale", "no such limit"),
        ("scale=often", "is no number"),
        ("scale=0.5", "larger than 1"),
        ("missing=-1", "larger than 0"),
        ("missing=nan", "larger than 0"),
        ("weight.rows=0.3", "of the whole dataset"),
    ],
)
def test_other_limits_are_refused(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=f"data.change_limits: .*{message}"):
        resolve(Settings(), parse_assignments([f"data.change_limits={text}"]))


def test_the_command_line_takes_names_with_commas_between() -> None:
    data = resolve(
        Settings(),
        parse_assignments(["data.change_limits=rows=0.7,weight.scale=100", "data.ignore_changes=id,at"]),
    ).data
    assert data.change_limits == ("rows=0.7", "weight.scale=100")
    assert data.ignore_changes == ("id", "at")
