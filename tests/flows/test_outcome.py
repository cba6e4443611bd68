"""The last line that a retraining prints."""

from types import SimpleNamespace

import pytest

from flows.cli.summary import outcome
from tasks.report_page.wording import reason, summary
from training.records import NOT_AGAIN, Verdict


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


def test_weights_that_passed_the_gate_and_are_refused_are_not_called_promoted():
    verdict = Verdict(promote=True, summary="Promoted over version 1: better", rules=(), champion_version="1")
    assert summary(verdict, "champion") == "Promoted over version 1: better"
    assert reason(verdict, "champion") == "better"
    assert summary(verdict, "none") == f"Not promoted: {NOT_AGAIN}"
    kept = verdict.model_copy(update={"promote": False, "summary": "Kept version 1: worse"})
    assert (summary(kept, "challenger"), reason(kept, "challenger")) == ("Kept version 1: worse", "worse")
