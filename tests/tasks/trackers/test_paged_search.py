"""Searches of MLflow whose results exceed one page."""

from pathlib import Path

import pytest
from tracked import planned

from tasks.registry.aliases import ROLLED_BACK_TAG, WEIGHTS_TAG, find_version, was_rolled_back
from tasks.registry.lookup import find_alias
from tasks.trackers import paged_search as pages
from tasks.trackers.mlflow_run import RUN_KEY_TAG, connect, open_run
from training.errors import SettingError
from training.storage.paths import Home

_MORE_THAN_A_PAGE = 7


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_SIZE", 2)


def test_the_oldest_of_many_versions_and_all_of_many_models_are_found(home: Home) -> None:
    client = connect(None, home)
    for number in range(_MORE_THAN_A_PAGE):
        client.create_registered_model(f"model-{number}")
    for number in range(_MORE_THAN_A_PAGE):
        tags = {RUN_KEY_TAG: "one", WEIGHTS_TAG: "same"} | (
            {ROLLED_BACK_TAG: "by hand"} if not number else {}
        )
        client.create_model_version("model-0", source=str(home.root), tags=tags)
    assert find_version(client, "model-0", {RUN_KEY_TAG: "one"}) == "1"
    assert was_rolled_back(client, "model-0", "same")
    with pytest.raises(SettingError, match="no such model") as refused:
        find_alias(client, "another", "champion")
    assert all(f"model-{number}" in str(refused.value) for number in range(_MORE_THAN_A_PAGE))


def test_all_killed_runs_are_closed_and_all_doubles_of_a_run_are_removed(home: Home, tmp_path: Path) -> None:
    client = connect(None, home)
    for number in range(_MORE_THAN_A_PAGE):
        client.create_experiment(f"other-{number}", artifact_location=tmp_path.as_uri())
    plan, _ = planned(home)
    mine = open_run(client, plan)
    tags = dict(client.get_run(mine).data.tags)
    other_experiment = client.get_experiment_by_name(f"other-{_MORE_THAN_A_PAGE - 1}")
    assert other_experiment is not None
    killed = [
        client.create_run(
            other_experiment.experiment_id, tags=tags | {RUN_KEY_TAG: f"another-{number}"}
        ).info.run_id
        for number in range(_MORE_THAN_A_PAGE)
    ]
    experiment = client.get_run(mine).info.experiment_id
    doubles = [client.create_run(experiment, tags=tags).info.run_id for _ in range(_MORE_THAN_A_PAGE)]
    assert open_run(client, plan) == mine
    assert {client.get_run(run).info.status for run in killed} == {"KILLED"}
    assert {client.get_run(run).info.lifecycle_stage for run in doubles} == {"deleted"}
