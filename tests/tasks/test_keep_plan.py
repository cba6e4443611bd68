"""A plan that was kept: what a search may change of a run that it reuses as a trial."""

from page_sample import release
from small_runs import tiny_settings

from tasks.train import keep_plan
from training.data.sources.digits import Digits
from training.identity import latest_run
from training.plan import RunPlan, identify
from training.recipe import load
from training.records import Verdict
from training.storage.paths import Home
from training.storage.record_files import write_record

SEARCH = "5" * 64


def planned(home: Home, search: str = "") -> RunPlan:
    plan = identify(home, load("digits")[1], tiny_settings(), Digits().fetch(home.sources))
    return plan.model_copy(update={"search": search})


def test_a_released_run_that_a_search_reuses_stays_a_run_of_its_own(home: Home) -> None:
    run = keep_plan(planned(home))
    verdict = Verdict(promote=True, summary="Promoted.", rules=(), champion_version=None)
    write_record(run.paths.release, release(verdict), run.paths.root.name)
    assert keep_plan(planned(home, SEARCH)).search == ""
    assert latest_run(home, "digits") is not None


def test_an_unfinished_run_that_a_search_resumes_becomes_its_trial(home: Home) -> None:
    keep_plan(planned(home))
    assert keep_plan(planned(home, SEARCH)).search == SEARCH
    assert latest_run(home, "digits") is None
