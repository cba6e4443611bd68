"""The last line that a retraining prints."""

from types import SimpleNamespace

import pytest

from flows.cli.summary import outcome
from tasks.flow_runs import outcome as of_flow_run
from tasks.report_page.wording import headline, reason, summary, was_promoted
from training.records import ALREADY_CHAMPION, NOT_AGAIN, Release, Verdict


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
    verdict = SimpleNamespace(champion_version=champion, promote=True, summary="Promoted: better")
    release = SimpleNamespace(model="m", version="3", alias=alias, reused=reused, verdict=verdict)
    assert said in outcome(release)


@pytest.mark.parametrize("change", [{"summary": f"{ALREADY_CHAMPION}: 0.9"}, {"promote": False}])
def test_a_version_that_was_champion_before_is_not_called_promoted(change):
    """As in a second home that makes the model which another home promoted, maybe with a stricter gate."""
    verdict = Verdict(promote=True, summary="Promoted over version 1: better", rules=(), champion_version="1")
    release = Release.model_construct(model="m", version="3", alias="champion", reused=False, verdict=verdict)
    assert was_promoted(release)
    already = release.model_copy(update={"verdict": verdict.model_copy(update=change)})
    assert not was_promoted(already)
    assert outcome(already) == "m version 3 is the champion already"
    assert headline(already).title == "Version 3 is the champion already"
    assert of_flow_run(already).startswith("unchanged: m version 3 is the champion already: ")


def test_weights_that_passed_the_gate_and_are_refused_are_not_called_promoted():
    verdict = Verdict(promote=True, summary="Promoted over version 1: better", rules=(), champion_version="1")
    assert summary(verdict, "champion") == "Promoted over version 1: better"
    assert reason(verdict, "champion") == "better"
    assert summary(verdict, "none") == f"Not promoted: {NOT_AGAIN}"
    kept = verdict.model_copy(update={"promote": False, "summary": "Kept version 1: worse"})
    assert (summary(kept, "challenger"), reason(kept, "challenger")) == ("Kept version 1: worse", "worse")
