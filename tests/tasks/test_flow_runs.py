"""Prefect's record of a killed run is closed by the next start of the same home and recipe, and by no other."""

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.states import Pending, Running
from prefect.utilities.names import generate_slug

from flows.retrain import retrain
from tasks.flow_runs import outcome, tag_flow_runs
from training.errors import SettingError
from training.records import NOT_AGAIN, Release, Verdict
from training.storage.paths import Home

pytestmark = pytest.mark.usefixtures("prefect_harness")


@flow
def begun() -> str:
    return str(flow_run.id)


def killed(home: Home, recipe: str, pending: bool = False) -> str:
    """Create a flow run in the state in which SIGKILL leaves it; returns its id."""
    with tag_flow_runs(home, recipe):
        run_id = begun()
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(uuid.UUID(run_id), Pending() if pending else Running(), force=True)
    return run_id


def state_of(run_id: str) -> str:
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(uuid.UUID(run_id)).state
    assert state is not None
    return str(state.type.value)


def test_the_next_start_marks_what_was_killed_as_crashed(home: Home, tmp_path: Path) -> None:
    running, pending = killed(home, "digits"), killed(home, "digits", pending=True)
    others = [killed(Home(tmp_path / "other"), "digits"), killed(home, "fashion-mnist")]
    nowhere = {"data": {"path": str(tmp_path / "nowhere")}, "scaling": {"num_workers": 0}}
    with tag_flow_runs(home, "digits"), pytest.raises(SettingError, match="nowhere"):
        retrain("digits", nowhere)
    assert [state_of(run_id) for run_id in (running, pending)] == ["CRASHED", "CRASHED"]
    assert [state_of(run_id) for run_id in others] == ["RUNNING", "RUNNING"]
    with get_client(sync_client=True) as client:
        tag = f"evergreen-home:{home.identity}"
        (own,) = [
            stored_run
            for stored_run in client.read_flow_runs()
            if tag in stored_run.tags and stored_run.name == "retrain-digits"
        ]
    assert own.state is not None
    assert own.state.is_failed()  # because of the invalid setting: the run did not treat itself as killed


def nowhere(tmp_path: Path) -> dict[str, object]:
    return {"data": {"path": str(tmp_path / "nowhere")}, "scaling": {"num_workers": 0}}


def name_of_run(home: Home, recipe: str, run: "Callable[[], object]") -> str:
    with tag_flow_runs(home, recipe), pytest.raises(SettingError):
        run()
    with get_client(sync_client=True) as client:
        (own,) = [
            stored_run
            for stored_run in client.read_flow_runs()
            if f"evergreen-home:{home.identity}" in stored_run.tags
        ]
    return str(own.name)


def test_a_run_without_a_given_name_is_called_after_its_recipe(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "faces.py"
    assert name_of_run(home, "faces", lambda: retrain(str(file))) == "retrain-faces"


@pytest.mark.parametrize(
    "given", ["nightly-7", "after the move", "retrain-digits-7", "new-experiment", "upgrade"]
)
def test_a_given_name_stays(home: Home, tmp_path: Path, given: str) -> None:
    named = retrain.with_options(flow_run_name=given)
    assert name_of_run(home, "digits", lambda: named("digits", nowhere(tmp_path))) == given


@pytest.mark.parametrize(
    ("given", "kept"),
    [("nightly-7", True), (None, False), pytest.param(generate_slug(2), False, id="Prefect's own")],
)
def test_a_name_given_to_a_run_of_a_deployment_stays(
    home: Home, tmp_path: Path, given: str | None, kept: bool
) -> None:
    from prefect.flow_engine import run_flow

    parameters = {"recipe": "digits", "settings": nowhere(tmp_path)}
    with tag_flow_runs(home, "digits"), get_client(sync_client=True) as client:
        created = client.create_flow_run(retrain, parameters=parameters, name=given)
    with pytest.raises(SettingError, match="nowhere"):
        run_flow(retrain, flow_run=created, parameters=parameters)
    with get_client(sync_client=True) as client:
        name = client.read_flow_run(created.id).name
    assert name == (given if kept else "retrain-digits")


def test_the_outcome_says_what_became_of_the_model() -> None:
    verdict = Verdict(promote=False, summary="Kept version 3: too few rows", rules=(), champion_version="3")
    release = Release.model_construct(
        model="digits", version="4", alias="challenger", reused=False, verdict=verdict
    )
    kept = "kept: digits version 4 (challenger); version 3 stays champion: too few rows"
    assert outcome(release) == kept
    better = verdict.model_copy(update={"promote": True, "summary": "Promoted over version 3: better"})
    promoted = release.model_copy(update={"alias": "champion", "verdict": better})
    assert outcome(promoted) == "promoted: digits version 4 is the champion: better"
    refused = release.model_copy(
        update={"alias": "none", "verdict": verdict.model_copy(update={"promote": True})}
    )
    assert outcome(refused) == f"kept: digits version 4; version 3 stays champion: {NOT_AGAIN}"
    reused = outcome(release.model_copy(update={"alias": "none", "reused": True}))
    assert reused == "unchanged: digits version 4 was made from the same data, recipe, code and settings"
