"""A training that is finished on this machine also reaches the object store that a later command names."""

import logging
from pathlib import Path

import pytest
from small_runs import job_for, tiny_settings

from training.attempts.job import TrainingJob
from training.checkpoints.opening import stored_run
from training.checkpoints.stored_run import RunState, StoredRun
from training.errors import TransientError
from training.records import DatasetVersion, TrainedModel
from training.storage.paths import Home
from training.supervision.launch import launch


def job_of(home: Home, version: DatasetVersion, url: str | None) -> TrainingJob:
    return job_for(home, version, tiny_settings(storage={"url": url} if url else {}))


def store_of(job: TrainingJob) -> StoredRun:
    stored = stored_run(job)
    assert stored is not None
    return stored


@pytest.fixture
def trained(home: Home, small_version: DatasetVersion) -> TrainedModel:
    """A training that was finished without a store."""
    return launch(job_of(home, small_version, None))


def test_it_is_uploaded_once_and_found_by_another_machine(
    home: Home, small_version: DatasetVersion, trained: TrainedModel, tmp_path: Path
) -> None:
    job = job_of(home, small_version, f"file://{tmp_path}/store")
    assert launch(job) == launch(job)
    stored = store_of(job)
    assert [state.attempt for state in (stored.state(),)] == [2]
    assert {file.name.partition("/")[0] for file in stored.state().model} >= {"model", "metrics.jsonl"}

    other = job_of(Home(tmp_path / "other"), small_version, f"file://{tmp_path}/store")
    assert launch(other).weights_digest == trained.weights_digest
    assert store_of(other).state() == stored.state()


@pytest.mark.usefixtures("trained")
def test_a_run_that_another_driver_has_begun_is_left_to_it(
    home: Home, small_version: DatasetVersion, tmp_path: Path
) -> None:
    job = job_of(home, small_version, f"file://{tmp_path}/store")
    store_of(job).begin("another/1/driver", 1)
    before = store_of(job).state()
    launch(job)
    assert store_of(job).state() == before


def test_a_store_that_is_away_costs_a_warning(
    home: Home,
    small_version: DatasetVersion,
    trained: TrainedModel,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "store").touch()
    with caplog.at_level(logging.WARNING):
        model = launch(job_of(home, small_version, f"file://{tmp_path}/store"))
    assert model.weights_digest == trained.weights_digest
    assert "The finished training is not in file://" in caplog.text


@pytest.mark.usefixtures("trained")
def test_an_upload_that_was_interrupted_at_its_beginning_is_made_by_the_next_command(
    home: Home, small_version: DatasetVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(home, small_version, f"file://{tmp_path}/store")

    def away(*_: object) -> list[str]:
        raise TransientError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(StoredRun, "unused", away)  # called once the attempt is in the log
        launch(job)
    assert not store_of(job).state().model
    launch(job)
    assert store_of(job).state().model


@pytest.mark.usefixtures("trained")
def test_a_driver_that_begins_meanwhile_is_not_fenced_out(
    home: Home, small_version: DatasetVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(home, small_version, f"file://{tmp_path}/store")
    begin = StoredRun.begin

    def late(stored: StoredRun, driver: str, at_least: int, directly_after: RunState | None = None) -> int:
        begin(store_of(job), "another/1/driver", 1)
        return begin(stored, driver, at_least, directly_after)

    monkeypatch.setattr(StoredRun, "begin", late)
    launch(job)
    assert store_of(job).state().driver == "another/1/driver"


def test_a_store_that_refuses_this_user_costs_a_warning_only(
    home: Home, small_version: DatasetVersion, trained: TrainedModel, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        model = launch(job_of(home, small_version, "s3://no-such-package-or-bucket/x"))
    assert model.weights_digest == trained.weights_digest
    assert "The finished training is not in s3://" in caplog.text
