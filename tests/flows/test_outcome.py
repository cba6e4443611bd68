"""The last line that a retraining prints."""

from types import SimpleNamespace

import pytest

from flows.cli.summary import outcome


@pytest.mark.parametrize(
    ("alias", "champion", "reused", "said"),
    [
        ("champion", "2", False, "promoted to champion"),
        ("challenger", "2", False, "kept as challenger"),
        ("challenger", None, False, "not promoted: there is no champion yet"),
        ("none", "2", True, "already m version 3 (no alias)"),
        ("previous", "2", True, "already m version 3 (previous)"),
    ],
)
def test_the_line_with_the_outcome(alias, champion, reused, said):
    verdict = SimpleNamespace(champion_version=champion)
    release = SimpleNamespace(model="m", version="3", alias=alias, reused=reused, verdict=verdict)
    assert said in outcome(release)
