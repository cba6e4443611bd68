"""A version whose run was killed before its verdict is judged by the recipe's next run."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from candidates import Candidate, trained_candidate
from mlflow import MlflowClient
from tracked import planned

from tasks import register as module
from tasks.evaluate import evaluate
from tasks.registry import decisions
from tasks.registry.aliases import CHAMPION, champion_of, find_version
from tasks.registry.decisions import read_decisions
from tasks.registry.lock import Lease
from tasks.registry.unjudged import NOT_JUDGED, VERDICT_TAG, give_up, unjudged_runs
from tasks.report import note_efficiency
from tasks.report_page.wording import was_promoted
from tasks.trackers.mlflow_run import close_run, connect_once, open_run
from tasks.train import keep_plan
from tasks.verify import agreement
from tasks.verify.evidence import Evidence
from training.storage.paths import Home
from training.storage.record_files import write_record
from training.supervision.launch import launch, make_job


class Killed(BaseException):
    """A power cut."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Candidate, MlflowClient]:
    """A home with version 1 of a run that was killed before its verdict."""
    home = Home(tmp_path_factory.mktemp("killed"))
    candidate = trained_candidate(home)
    keep_plan(candidate.plan)

    def die(*_: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "judge", die)
        with pytest.raises(Killed):
            candidate.register()
    return home, candidate, connect_once(candidate.plan)


def tags(client: MlflowClient, candidate: Candidate) -> dict[str, str]:
    return client.get_model_version(candidate.plan.model, "1").tags


@pytest.mark.extended
def test_the_next_run_judges_an_unjudged_version(killed: tuple[Home, Candidate, MlflowClient]) -> None:
    home, candidate, client = killed
    assert VERDICT_TAG not in tags(client, candidate)
    following = trained_candidate(home, seed=1)
    run_id = open_run(client, following.plan)
    (left,) = unjudged_runs(client, following.plan)
    assert left.plan.run_key == candidate.plan.run_key
    assert left.trained.weights_digest == candidate.trained.weights_digest
    judged = Candidate(left.plan, left.version, left.trained, candidate.evaluation).register()
    assert (judged.version, judged.alias) == ("1", "champion")
    assert tags(client, candidate)[VERDICT_TAG] == "promote"
    assert champion_of(client, candidate.plan.model, CHAMPION) == "1"
    assert unjudged_runs(client, following.plan) == []
    statuses = [client.get_run(mlflow_run_id).info.status for mlflow_run_id in (run_id, judged.mlflow_run_id)]
    assert statuses == ["RUNNING", "RUNNING"]  # neither counts as killed
    close_run(client, judged.mlflow_run_id, "FINISHED")  # as the report does
    statuses = [client.get_run(mlflow_run_id).info.status for mlflow_run_id in (run_id, judged.mlflow_run_id)]
    assert statuses == ["RUNNING", "FINISHED"]
    assert open_run(client, following.plan) == run_id  # the next start continues its own MLflow run
    assert client.get_run(run_id).info.status == "RUNNING"


def test_a_run_does_not_list_its_own_version_as_unjudged(
    killed: tuple[Home, Candidate, MlflowClient],
) -> None:
    _, candidate, client = killed
    client.delete_model_version_tag(candidate.plan.model, "1", VERDICT_TAG)
    assert unjudged_runs(client, candidate.plan) == []


def test_a_run_of_another_recipe_with_the_same_model_leaves_the_version_to_its_recipe(
    killed: tuple[Home, Candidate, MlflowClient],
) -> None:
    home, candidate, client = killed
    plan = trained_candidate(home, seed=1).plan
    tracking = plan.settings.tracking.model_copy(update={"model": plan.model})
    other = plan.model_copy(
        update={
            "recipe": plan.recipe.model_copy(update={"name": "other"}),
            "settings": plan.settings.model_copy(update={"tracking": tracking}),
        }
    )
    assert other.model == candidate.plan.model
    assert unjudged_runs(client, other) == []
    assert VERDICT_TAG not in tags(client, candidate)
    assert len(unjudged_runs(client, plan)) == 1


def test_a_version_whose_run_is_gone_is_tagged_as_not_judged(
    killed: tuple[Home, Candidate, MlflowClient],
) -> None:
    home, candidate, client = killed
    shutil.rmtree(Path(candidate.plan.paths.root))
    assert unjudged_runs(client, trained_candidate(home, seed=2).plan) == []
    assert tags(client, candidate)[VERDICT_TAG] == NOT_JUDGED


@pytest.mark.extended
def test_a_home_that_makes_the_model_of_another_home_leaves_the_verdict_alone(tmp_path: Path) -> None:
    ours, theirs = (
        candidate_in(tmp_path / name, f"sqlite:///{tmp_path}/shared.db") for name in ("one", "other")
    )
    client = connect_once(ours.plan)
    first = ours.register()
    before = client.get_model_version(first.model, first.version)
    assert (before.tags[VERDICT_TAG], first.alias) == ("promote", "champion")
    second = theirs.register(floor=1.0)
    after = client.get_model_version(first.model, first.version)
    assert (second.version, second.alias, second.verdict.promote) == (first.version, "champion", False)
    note_efficiency(client, theirs.plan, theirs.trained, second, "image")
    after = client.get_model_version(first.model, first.version)
    assert (after.tags, after.description) == (before.tags, before.description)
    note_efficiency(client, ours.plan, ours.trained, first, "image")
    assert "evergreen.worker_hours" in client.get_model_version(first.model, first.version).tags
    assert ours.register(floor=0.5).version == first.version  # the first home may judge the version again


@pytest.mark.extended
def test_a_home_that_makes_the_champion_of_another_home_promotes_nothing(tmp_path: Path) -> None:
    ours, theirs = (
        candidate_in(tmp_path / name, f"sqlite:///{tmp_path}/shared.db") for name in ("one", "other")
    )
    first = ours.register()
    assert first.verdict.summary.startswith("Promoted ")
    second = theirs.register()
    assert (second.version, second.alias) == (first.version, "champion")
    floor = second.verdict.rules[0].explanation
    assert second.verdict.summary == f"Is the champion already: {floor}"
    homes = [Home(Path(candidate.plan.home)) for candidate in (ours, theirs)]
    decided = [[line.to for line in read_decisions(home, first.model).records] for home in homes]
    assert decided == [[first.version], []]
    write_record(theirs.plan.paths.release, second, theirs.plan.paths.root.name)
    assert agreement.verdict_follows(Evidence(theirs.plan.paths, homes[1])).ok


@pytest.mark.extended
def test_the_first_promotion_is_on_record_although_a_crash_came_before_the_record(tmp_path: Path) -> None:
    candidate = candidate_in(tmp_path / "home", f"sqlite:///{tmp_path}/own.db")

    def die(*_: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decisions, "write_records", die)
        with pytest.raises(Killed):
            candidate.register()
    release = candidate.register()
    assert (release.alias, release.verdict.summary[:9]) == ("champion", "Promoted ")
    records = read_decisions(Home(Path(candidate.plan.home)), release.model).records
    assert [(line.action, line.before, line.to) for line in records] == [("promote", None, release.version)]


def candidate_in(folder: Path, uri: str, **sections: Any) -> Candidate:
    """The candidate of a home that records in the MLflow store `uri`."""
    plan, version = planned(Home(folder), uri=uri, **sections)
    trained = launch(make_job(plan.run_key, plan.paths, plan.recipe, plan.settings, version, plan.initial))
    return Candidate(plan, version, trained, evaluate.fn(plan, version, trained))


@pytest.mark.extended
def test_of_two_homes_with_one_run_key_only_one_records_that_it_replaced_the_champion(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/shared.db"
    poor = candidate_in(tmp_path / "poor", store, training={"epochs": 1, "learning_rate": 1e-6})
    ours, theirs = (candidate_in(tmp_path / name, store) for name in ("one", "other"))
    assert poor.register().alias == "champion"
    ours, theirs = ours.compared_again(), theirs.compared_again()
    first, second = ours.register(), theirs.register()
    assert (first.version, first.verdict.champion_version) == ("2", "1")
    assert first.alias == "champion", first.verdict.rules
    assert (second.version, second.alias) == ("2", "champion")
    assert was_promoted(first)
    assert not was_promoted(second)
    homes = [Home(Path(candidate.plan.home)) for candidate in (ours, theirs)]
    decided = [[line.to for line in read_decisions(home, first.model).records] for home in homes]
    assert decided == [["2"], []]
    write_record(theirs.plan.paths.release, second, theirs.plan.paths.root.name)
    assert agreement.verdict_follows(Evidence(theirs.plan.paths, homes[1])).ok
    assert was_promoted(ours.register())  # a run that is repeated after a crash has promoted its version


@pytest.mark.extended
def test_versions_that_lost_answers_left_are_deleted_by_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = candidate_in(tmp_path / "home", f"sqlite:///{tmp_path}/own.db")

    def die(lease: Lease, tags: dict[str, str]) -> None:
        if find_version(lease.client, lease.model, tags) is not None:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module, "delete_duplicates", die)
        with pytest.raises(Killed):
            candidate.register()
    client = connect_once(candidate.plan)
    model = candidate.plan.model
    first = client.get_model_version(model, "1")
    for _ in range(2):
        client.create_model_version(model, first.source, first.run_id, tags=first.tags)
    release = candidate.register()
    assert (release.version, release.alias) == ("1", "champion")
    assert [str(version.version) for version in client.search_model_versions(f"name = '{model}'")] == ["1"]


@pytest.mark.extended
def test_a_version_that_another_home_gave_up_gets_the_verdict_of_the_home_that_judges_it(
    tmp_path: Path,
) -> None:
    ours, theirs = (
        candidate_in(tmp_path / name, f"sqlite:///{tmp_path}/shared.db") for name in ("one", "other")
    )
    with pytest.MonkeyPatch.context() as patch:

        def die(*_: object) -> None:
            raise Killed

        patch.setattr(module, "judge", die)
        with pytest.raises(Killed):
            ours.register()
    client = connect_once(ours.plan)
    give_up(client, ours.plan.model, "1", "its files were removed")
    assert theirs.register().alias == "champion"
    assert client.get_model_version(ours.plan.model, "1").tags[VERDICT_TAG] == "promote"
