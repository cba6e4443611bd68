"""A failed run of a deployment: Prefect retries it if a retry may help, under the same run key."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.flow_engine import run_flow
from prefect.states import Scheduled
from small_runs import job_for, tiny_settings, write_recipe

import flows.retrain
from flows.retrain import retrain
from tasks.flow_retries import failures_of_this_flow_run
from training.attempts.history import Failure, note, read_failures
from training.errors import ResourceError, SettingError, TransientError
from training.plan import RunPlan
from training.records import DatasetVersion, Release
from training.storage.paths import Home, RunPaths
from training.supervision.launch import launch
from training.trainers.torch.replica import Replica

pytestmark = pytest.mark.usefixtures("prefect_harness")

# Prefect reads these options from PREFECT_FLOWS_DEFAULT_RETRIES and _RETRY_DELAY_SECONDS at import, in a deployment.
_DEPLOYED = retrain.with_options(retries=2, retry_delay_seconds=1)

_SETTINGS: dict[str, dict[str, Any]] = {
    "training": {"epochs": 1},
    "scaling": {"num_workers": 0},
    "tracking": {"system_metrics": False},
    "gate": {"floor": 0.0},
}


def deployed(recipe: str, **sections: dict[str, Any]) -> Release:
    return _DEPLOYED(recipe, _SETTINGS | sections)


@contextmanager
def newest_run() -> Iterator[Callable[[], FlowRun]]:
    """A function that returns the flow run that the block has started."""
    with get_client(sync_client=True) as client:
        before = {run.id for run in client.read_flow_runs()}

        def found() -> FlowRun:
            (run,) = [
                flow_run
                for flow_run in client.read_flow_runs()
                if flow_run.id not in before and flow_run.parent_task_run_id is None
            ]
            return client.read_flow_run(uuid.UUID(str(run.id)))

        yield found


@pytest.mark.extended
def test_a_transient_failure_is_followed_by_a_retry_that_finishes(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identify, keys = flows.retrain.identify, list[str]()

    def identified(*given: Any) -> RunPlan:
        plan = identify(*given)
        keys.append(plan.run_key)
        if len(keys) == 1:
            raise TransientError("the tracking server is away")
        return plan

    monkeypatch.setattr(flows.retrain, "identify", identified)
    with newest_run() as newest:
        # Prefect raises the first try's error in the caller of a flow that returns a state, but not in a worker.
        with suppress(TransientError):
            deployed(write_recipe(tmp_path))
        assert (newest().run_count, newest().state_name) == (2, "Completed")
    assert len(set(keys)) == 1
    assert home.run("plain", keys[0]).release.is_file()


def test_a_permanent_failure_is_not_retried(home: Home) -> None:
    with newest_run() as newest:
        with pytest.raises(SettingError, match="nowhere"):
            deployed("digits", data={"path": str(home.root / "nowhere")})
        assert (newest().run_count, newest().state_name) == (1, "Failed")


@pytest.mark.extended
def test_a_run_that_a_person_starts_again_has_its_retries_again(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: a full disk ends the run; after the disk was cleared, the tracking server is away for a moment."""
    identify, errors = flows.retrain.identify, [TransientError("away"), ResourceError("the disk is full")]

    def identified(*given: Any) -> RunPlan:
        if errors:
            raise errors.pop()
        return identify(*given)

    monkeypatch.setattr(flows.retrain, "identify", identified)
    recipe = write_recipe(tmp_path)
    with newest_run() as newest, get_client(sync_client=True) as client:
        with pytest.raises(ResourceError):
            deployed(recipe)
        assert (newest().run_count, newest().state_name) == (1, "Failed")
        client.set_flow_run_state(newest().id, Scheduled(name="AwaitingRetry"), force=True)
        with suppress(TransientError):
            run_flow(_DEPLOYED, flow_run=newest(), parameters={"recipe": recipe, "settings": _SETTINGS})
        assert (newest().run_count, newest().state_name) == (3, "Completed")
    assert not errors


def steps_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each training fail at its first step, as if a peer had closed the connection."""

    def step(*_: object) -> None:
        raise ConnectionError("no answer")

    monkeypatch.setattr(Replica, "step", step)


@pytest.mark.extended
def test_a_used_up_failure_budget_is_not_granted_again(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps_fail(monkeypatch)
    with newest_run() as newest:
        with pytest.raises(TransientError, match="no answer"):
            deployed(write_recipe(tmp_path), failure={"max_failures": 1})
        assert newest().run_count == 1
    (run,) = home.runs("plain").iterdir()
    assert len(read_failures(RunPaths(run))) == 2


def test_failures_of_an_earlier_try_count(
    home: Home, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_for(home, small_version, tiny_settings(failure={"max_failures": 2}))
    job.paths.root.mkdir(parents=True)
    note(job.paths.failures, Failure(number=1, at=0.0, error="of an earlier flow run"))
    spent: list[int] = []

    @flow(retries=1)
    def trained() -> None:
        spent.append(failures_of_this_flow_run(job.paths))
        note(job.paths.failures, Failure(number=2, at=1.0, error="of this flow run"))
        if len(spent) == 1:
            raise TransientError("again")

    trained()
    assert spent == [0, 1]
    steps_fail(monkeypatch)
    with pytest.raises(TransientError) as failed:
        launch(job, failed_before=2)
    assert failed.value.final
    assert len(read_failures(job.paths)) == 4


@pytest.mark.extended
def test_work_that_is_done_is_not_repeated_when_prefect_runs_the_flow_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when Prefect's server answers the final state with an error: a forced run would train once more."""
    bring_up_to_date, calls = flows.retrain.bring_up_to_date, list[str]()
    completed, failures = flows.retrain.completed, [ResourceError("status 500")]

    def counted(*given: Any) -> Release:
        calls.append("call")
        return bring_up_to_date(*given)

    def failing_once(release: Release) -> Any:
        if failures:
            raise failures.pop()
        return completed(release)

    monkeypatch.setattr(flows.retrain, "bring_up_to_date", counted)
    monkeypatch.setattr(flows.retrain, "completed", failing_once)
    with newest_run() as newest:
        with suppress(ResourceError):
            _DEPLOYED("digits", _SETTINGS, force=True)
        assert (newest().run_count, newest().state_name) == (2, "Completed")
        assert str(getattr(newest().state, "message", "")).startswith("promoted: digits version 1")
    assert calls == ["call"]
