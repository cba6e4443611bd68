"""I10 for looks that another run or another home recorded, with predictions that may differ in their last bits."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from table_candidates import Candidate, candidate, parcels
from verified_run import edit

from tasks.registry.aliases import WEIGHTS_TAG, version_tags
from tasks.trackers.mlflow_run import HOME_TAG, connect
from tasks.verify import agreement
from tasks.verify.finding import Outcome
from training.records import Release
from training.storage.paths import Home

pytest.importorskip("xgboost")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Candidate, Release]:
    """A candidate, version 2, that was compared with the champion, version 1, by their squared errors."""
    home = Home(tmp_path_factory.mktemp("home"))
    candidate(home, parcels(), rounds=3).register()
    new_candidate = candidate(home, parcels(), rounds=12)
    return new_candidate, new_candidate.register()


@pytest.fixture
def rounded(compared: tuple[Candidate, Release]) -> Iterator[tuple[Candidate, Release]]:
    """The candidate, whose recorded look differs from its predictions by a rounding error."""
    new_candidate, release = compared
    new_candidate.keep(release)
    written = new_candidate.plan.paths.release.read_bytes()
    change(new_candidate.plan.paths.release, release.verdict.looks[0].reference_error * (1 + 1e-7))
    yield new_candidate, release
    new_candidate.plan.paths.release.write_bytes(written)


def change(file: Path, error: float) -> None:
    edit(file, lambda record: record["verdict"]["looks"][0].update(reference_error=error))


def scores(new_candidate: Candidate) -> Outcome:
    return agreement.scores_follow(new_candidate.evidence())


@pytest.mark.extended
def test_a_look_that_the_run_recorded_is_what_its_predictions_give(
    rounded: tuple[Candidate, Release],
) -> None:
    outcome = scores(rounded[0])
    assert (outcome.ok, "mean squared error of question better" in outcome.detail) == (False, True)


def test_a_look_of_an_earlier_version_with_the_same_weights_may_be_rounded_otherwise(
    rounded: tuple[Candidate, Release],
) -> None:
    new_candidate, release = rounded
    client = connect(None, new_candidate.home)
    kept = version_tags(client, release.model, "1")[WEIGHTS_TAG]
    client.set_model_version_tag(release.model, "1", WEIGHTS_TAG, release.weights_digest)
    try:
        assert scores(new_candidate).ok
        change(new_candidate.plan.paths.release, release.verdict.looks[0].reference_error * (1 + 1e-4))
        assert scores(new_candidate).ok is False
    finally:
        client.set_model_version_tag(release.model, "1", WEIGHTS_TAG, kept)


def test_a_look_of_another_home_may_be_rounded_otherwise(rounded: tuple[Candidate, Release]) -> None:
    new_candidate, release = rounded
    client = connect(None, new_candidate.home)
    client.set_tag(release.mlflow_run_id, HOME_TAG, "other")
    try:
        assert scores(new_candidate).ok
    finally:
        client.set_tag(release.mlflow_run_id, HOME_TAG, new_candidate.home.identity)


def test_a_look_of_a_forced_run_may_be_rounded_otherwise(rounded: tuple[Candidate, Release]) -> None:
    """An ordinary run with the same weights may have recorded the look, and its version may be deleted since."""
    new_candidate, _ = rounded
    plan = new_candidate.plan.paths.ingredients.read_bytes()
    edit(new_candidate.plan.paths.ingredients, lambda record: record["ingredients"].update(forced="1"))
    try:
        assert scores(new_candidate).ok
    finally:
        new_candidate.plan.paths.ingredients.write_bytes(plan)
