"""Rollback: restores the previous champion, records the rollback, and refuses if there is no previous champion."""

import json
import runpy
import shutil
from pathlib import Path
from urllib.parse import urlparse

import pytest
import registered
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from prefect_failures import server_fails_at_the_end
from registered import MODEL

from tasks import rollback as step
from tasks.registry.aliases import CHAMPION, PREVIOUS, ROLLED_BACK_TAG, champion_of, move_alias
from tasks.registry.decisions import Decision, decisions_file, read_decisions, record_decision
from tasks.registry.lock import registry_lock
from tasks.registry.rollback_mark import ROLLBACK_TAG
from tasks.registry.safe_loading import TRANSFORM_TAG
from tasks.trackers.mlflow_run import connect
from training.errors import DataError, SettingError
from training.storage.paths import Home


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    home = Home(tmp_path_factory.mktemp("registry"))
    return home, registered.register(home, versions=2)


@pytest.fixture
def promoted(registry):
    """Make version 2 champion, in place of version 1."""
    home, client = registry
    client.set_registered_model_alias(MODEL, CHAMPION, "1")
    if champion_of(client, MODEL, PREVIOUS):
        client.delete_registered_model_alias(MODEL, PREVIOUS)
    for number in ("1", "2"):
        for tag in {ROLLED_BACK_TAG, ROLLBACK_TAG} & set(client.get_model_version(MODEL, number).tags):
            client.delete_model_version_tag(MODEL, number, tag)
    with registry_lock(client, home, MODEL) as lease:
        move_alias(lease, "2", expected="1", why="better")
    return home, client


def rollback(home, model=MODEL, why="", to=None):
    return step.rollback.fn(str(home.root), model, why, to=to)


def away(*_):
    raise MlflowException("the connection was refused")


def decisions(home):
    return [
        json.loads(line) for line in (home.root / "decisions" / f"{MODEL}.jsonl").read_text().splitlines()
    ]


def test_a_version_that_this_home_can_not_predict_with_is_named(promoted, caplog):
    """Scenario: `gc` removed the run's folder, and with it the recipe's function `transform_rows`."""
    home, client = promoted
    client.set_model_version_tag(MODEL, "1", TRANSFORM_TAG, "a" * 64)
    try:
        assert rollback(home) == ("2", "1")
    finally:
        client.delete_model_version_tag(MODEL, "1", TRANSFORM_TAG)
    assert f"model {MODEL} version 1: its recipe's function transform_rows" in caplog.text
    assert "has no copy of the recipe" in caplog.text


def test_a_rollback_returns_to_the_previous_champion_and_back(promoted):
    home, client = promoted
    assert rollback(home, why="wrong on new cameras") == ("2", "1")
    assert champion_of(client, MODEL) == "1"
    last = decisions(home)[-1]
    assert {name: last[name] for name in ("action", "from", "to", "why")} == {
        "action": "rollback",
        "from": "2",
        "to": "1",
        "why": "wrong on new cameras",
    }
    assert client.get_model_version(MODEL, "2").tags["evergreen.rolled_back"] == "wrong on new cameras"
    assert rollback(home, to="2") == ("1", "2")
    assert champion_of(client, MODEL) == "2"
    for number in ("1", "2"):  # the rollback was undone: neither version is a bad one
        assert ROLLED_BACK_TAG not in client.get_model_version(MODEL, number).tags
    assert rollback(home) == ("2", "1")


def test_a_repeated_rollback_does_not_bring_the_bad_version_back(promoted):
    home, client = promoted
    rollback(home, why="wrong on new cameras")
    before = decisions(home)
    refused = r"version 2, .* was rolled back \(wrong on new cameras\), so nothing was changed.* --to VERSION"
    with pytest.raises(SettingError, match=refused):
        rollback(home)
    for same in ("1", "01", 1):
        assert rollback(home, to=same) == ("1", "1")
    assert (champion_of(client, MODEL), champion_of(client, MODEL, PREVIOUS)) == ("1", "2")
    assert decisions(home) == before


def test_a_rollback_that_ended_before_the_alias_moved_is_called_off_by_name(promoted, monkeypatch):
    home, client = promoted

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_registered_model_alias", away)
        with pytest.raises(MlflowException, match="refused"):
            rollback(home, why="bad")
    assert ROLLED_BACK_TAG in client.get_model_version(MODEL, "2").tags
    assert rollback(home, to="2") == ("2", "2")
    assert ROLLED_BACK_TAG not in client.get_model_version(MODEL, "2").tags


def test_a_rollback_to_a_former_champion_passes_over_bad_versions(registry, promoted):
    home, client = promoted
    source = client.get_model_version(MODEL, "1").source
    third, fourth = (str(client.create_model_version(MODEL, source).version) for _ in range(2))
    try:
        with registry_lock(client, home, MODEL) as lease:
            move_alias(lease, third, expected="2", why="better")
        assert rollback(home, why="bad, like the one before", to="1") == (third, "1")
        assert (champion_of(client, MODEL), champion_of(client, MODEL, PREVIOUS)) == ("1", third)
        with pytest.raises(SettingError, match=f"version {fourth} was never champion"):
            rollback(home, to=fourth)
        assert ROLLED_BACK_TAG in client.get_model_version(MODEL, third).tags
        with pytest.raises(SettingError, match=f"version {third}, .* was rolled back"):
            rollback(home)
        assert rollback(home, to=f"0{third}") == ("1", third)  # undone
        assert ROLLED_BACK_TAG not in client.get_model_version(MODEL, third).tags
        assert rollback(home) == (third, "1")
        for unknown in ("99", "best"):
            with pytest.raises(SettingError, match=f"there is no version {unknown}"):
                rollback(home, to=unknown)
        assert champion_of(client, MODEL) == "1"
    finally:
        for made in (third, fourth):
            client.delete_model_version(MODEL, made)


def test_a_rollback_without_a_previous_champion_is_refused(promoted):
    home, client = promoted
    client.delete_registered_model_alias(MODEL, PREVIOUS)
    before = decisions(home)
    listed = rf"Registered are: {MODEL} \(champion -> 2\)"
    with pytest.raises(SettingError, match=f"version 2, has no predecessor.* {listed}") as caught:
        rollback(home)
    assert "evergreen recipes" not in str(caught.value)  # that command lists recipes, not models
    with pytest.raises(SettingError, match=f"model 'gone': no such model. {listed}"):
        rollback(home, model="gone")
    assert champion_of(client, MODEL) == "2"
    assert decisions(home) == before
    client.delete_registered_model_alias(MODEL, CHAMPION)
    with pytest.raises(SettingError, match="no version is champion"):
        rollback(home)


@pytest.mark.usefixtures("prefect_harness")
def test_the_flow_returns_from_and_to(promoted, monkeypatch):
    from flows.rollback import rollback as flow

    home, _ = promoted
    monkeypatch.setenv("EVERGREEN_HOME", str(home.root))
    assert tuple(flow(MODEL, why="by test")) == ("2", "1")
    assert decisions(home)[-1]["why"] == "by test"


@pytest.mark.usefixtures("prefect_harness")
def test_a_rollback_is_done_once_although_prefects_server_fails_at_its_end(promoted, monkeypatch, caplog):
    from flows.rollback import rolled_back

    home, client = promoted
    monkeypatch.setenv("EVERGREEN_HOME", str(home.root))
    with server_fails_at_the_end() as refused:
        assert rolled_back(MODEL, why="by test") == ("2", "1")
    assert refused
    assert "the rollback is done" in caplog.text
    assert (champion_of(client, MODEL), champion_of(client, MODEL, PREVIOUS)) == ("1", "2")
    with pytest.raises(SettingError, match="no such model"):
        rolled_back("gone")


def test_prefects_default_retries_do_not_repeat_a_rollback():
    from prefect.settings import PREFECT_FLOWS_DEFAULT_RETRIES, temporary_settings

    import flows.rollback

    with temporary_settings({PREFECT_FLOWS_DEFAULT_RETRIES: 2}):
        defined = runpy.run_path(flows.rollback.__file__)
    assert defined["rollback"].retries == 0


def test_a_rollback_to_a_version_that_does_not_load_is_refused(promoted):
    home, client = promoted
    files = Path(urlparse(client.get_model_version_download_uri(MODEL, "1")).path)
    spared = files.with_name("spared")
    files.rename(spared)
    try:
        with pytest.raises(DataError, match=f"model {MODEL} version 1 can't be loaded"):
            rollback(home)
    finally:
        shutil.rmtree(files, ignore_errors=True)
        spared.rename(files)
    assert champion_of(client, MODEL) == "2"


@pytest.mark.parametrize("lost", [1, 2])
def test_an_alias_that_moved_although_its_answer_was_lost_is_a_rollback(promoted, monkeypatch, lost):
    """The server moved the alias, champion or previous; the connection broke before its answer."""
    home, client = promoted
    calls, real = [], MlflowClient.set_registered_model_alias

    def cut(self, *given):
        real(self, *given)
        calls.append(given)
        if len(calls) == lost:
            raise MlflowException("the connection was reset")

    monkeypatch.setattr(MlflowClient, "set_registered_model_alias", cut)
    assert rollback(home, why="by test") == ("2", "1")
    assert (champion_of(client, MODEL), champion_of(client, MODEL, PREVIOUS)) == ("1", "2")
    assert decisions(home)[-1]["why"] == "by test"


def test_an_alias_that_did_not_move_is_a_failure(promoted, monkeypatch):
    home, client = promoted

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_registered_model_alias", away)
        with pytest.raises(MlflowException, match="refused"):
            rollback(home)
    assert champion_of(client, MODEL) == "2"


def test_a_rollback_on_record_is_done_although_its_mark_could_not_be_removed(promoted, monkeypatch, caplog):
    home, client = promoted

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "delete_model_version_tag", away)
        assert rollback(home, why="by test") == ("2", "1")
    assert f"tag {ROLLBACK_TAG} was not removed" in caplog.text
    assert rollback(home, to="2") == ("1", "2")
    assert [ROLLBACK_TAG in client.get_model_version(MODEL, number).tags for number in ("1", "2")] == [
        False
    ] * 2


def test_each_registry_has_decisions_of_its_own(tmp_path):
    """Version 3 of one registry is not version 3 of another."""
    home = Home(tmp_path / "home")
    connect(None, home)
    record_decision(home, MODEL, Decision(action="promote", to="3", why="better"))
    connect(f"sqlite:///{tmp_path}/server.db", home)
    assert read_decisions(home, MODEL).records == []
    record_decision(home, MODEL, Decision(action="promote", to="1", why="first"))
    assert [decision.to for decision in read_decisions(home, MODEL).records] == ["1"]
    connect(None, home)
    assert [decision.to for decision in read_decisions(home, MODEL).records] == ["3"]


def test_decisions_of_an_earlier_evergreen_about_a_server_s_registry_are_read(tmp_path):
    home = Home(tmp_path / "home")
    connect(f"sqlite:///{tmp_path}/server.db", home)
    record_decision(home, MODEL, Decision(action="promote", to="1", why="first"))
    file = read_decisions(home, MODEL).file
    file.rename(home.root / "decisions" / file.name)
    assert [decision.to for decision in read_decisions(home, MODEL).records] == ["1"]
    record_decision(home, MODEL, Decision(action="promote", before="1", to="2", why="better"))
    assert [decision.to for decision in read_decisions(home, MODEL).records] == ["1", "2"]
    connect(None, home)  # another registry, whose store is made now
    assert read_decisions(home, MODEL).records == []
    connect(f"sqlite:///{tmp_path}/server.db", home)
    assert [decision.to for decision in read_decisions(home, MODEL).records] == ["1", "2"]


def test_a_changed_password_of_the_store_leaves_the_decisions_where_they_are(tmp_path, monkeypatch):
    home = Home(tmp_path / "home")
    spellings = ["postgresql://me:old@db/mlflow", "postgresql://me:new@db/mlflow", "postgresql://db/mlflow/"]
    files = set()
    for uri in spellings:
        monkeypatch.setattr("mlflow.get_registry_uri", lambda uri=uri: uri)
        files.add(decisions_file(home, MODEL))
    assert len(files) == 1
