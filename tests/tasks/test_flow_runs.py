"""Prefect's record of a run that was killed: closed by the next start of the same home and recipe, by no other."""

import uuid
from pathlib import Path

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.states import Pending, Running

from flows.retrain import SettingsForm, retrain
from tasks.flow_runs import told_apart
from training.errors import SettingError
from training.paths import Home

pytestmark = pytest.mark.usefixtures("prefect_harness")


@flow
def begun() -> str:
    return str(flow_run.id)


def killed(home: Home, recipe: str, pending: bool = False) -> str:
    """The id of a flow run that is as a SIGKILL leaves it."""
    with told_apart(home, recipe):
        found = begun()
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(uuid.UUID(found), Pending() if pending else Running(), force=True)
    return found


def state_of(found: str) -> str:
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(uuid.UUID(found)).state
    assert state is not None
    return str(state.type.value)


def test_the_next_start_marks_what_was_killed_as_crashed(home: Home, tmp_path: Path) -> None:
    running, pending = killed(home, "digits"), killed(home, "digits", pending=True)
    others = [killed(Home(tmp_path / "other"), "digits"), killed(home, "fashion-mnist")]
    nowhere = {"data": {"path": str(tmp_path / "nowhere")}, "scaling": {"num_workers": 0}}
    with told_apart(home, "digits"), pytest.raises(SettingError, match="nowhere"):
        retrain("digits", SettingsForm.model_validate(nowhere))
    assert [state_of(one) for one in (running, pending)] == ["CRASHED", "CRASHED"]
    assert [state_of(one) for one in others] == ["RUNNING", "RUNNING"]
    with get_client(sync_client=True) as client:
        tag = f"evergreen-home:{home.identity}"
        (own,) = [one for one in client.read_flow_runs() if tag in one.tags and one.name == "retrain-digits"]
    assert own.state is not None
    assert own.state.is_failed()  # by the setting; it did not take itself for one that was killed
