"""Records of nights, with real homes and MLflow stores; a real process is killed."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tasks import night as module
from tasks.history import ended_without_files, find_nights, nights_of
from tasks.night import close_killed_nights, night_recorded
from tasks.trackers.mlflow_run import connect
from tasks.trackers.nights import CAUSE_TAG, experiment_of_nights, record_night
from training.errors import DataError, EvergreenError, SettingError, StopRequestedError, TrainingError
from training.night_record import NightRecord
from training.storage.night_files import keep_sent, keep_unsent, nights_of_home, open_nights, unsent_nights
from training.storage.paths import HOME_VARIABLE, Home
from training.storage.run_lock import run_lock


class HeldError(EvergreenError):
    """Any error with the exit status of a dataset that waits for a person."""

    exit_status = 6


@pytest.fixture(autouse=True)
def own_home(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(home.root))


def ended_by(error: BaseException, overrides: dict[str, Any] | None = None) -> None:
    with pytest.raises(type(error)), night_recorded("digits", overrides or {}):
        raise error


def night(name: str, home: str = "0123456789abcdef", **facts: Any) -> NightRecord:
    began = datetime(2026, 3, 1, 3, 30, tzinfo=UTC)
    about = {"recipe": "digits", "model": "digits", "began_at": began} | facts
    return NightRecord(night=name, home=home, **about)


@pytest.mark.parametrize(
    ("error", "outcome", "status"),
    [
        (SettingError("gate.floor: 2 is too much"), "refused", 2),
        (DataError("birds.csv, row 4: no number"), "failed", 3),
        (TrainingError("the loss diverged"), "failed", 4),
        (HeldError("the median of weight is 1,000 times that of the champion"), "held", 6),
        (StopRequestedError("stopped on request"), "interrupted", 130),
        (KeyError("name"), "failed", 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_gives_its_outcome_and_its_message(
    home: Home, error: Exception, outcome: str, status: int
) -> None:
    ended_by(error)
    (found,) = nights_of_home(home, "digits")
    assert (found.outcome, found.exit_status) == (outcome, status)
    assert str(error) in found.cause
    assert found.seconds is not None


def test_an_interruption_keeps_its_own_exit_status(home: Home) -> None:
    ended_by(KeyboardInterrupt())
    (found,) = nights_of_home(home, "digits")
    assert (found.outcome, found.exit_status) == ("interrupted", 130)


def test_a_cause_has_no_credentials(home: Home) -> None:
    ended_by(DataError("https://ann:secret@host/birds.csv: status 404"))
    (found,) = nights_of_home(home, "digits")
    assert found.cause == "https://host/birds.csv: status 404"


def test_the_model_is_that_of_the_settings_also_where_another_setting_is_wrong(home: Home) -> None:
    ended_by(SettingError("wrong"), {"tracking": {"model": "pets", "uri": ""}, "gate": {"flor": 1}})
    assert [found.model for found in nights_of_home(home, "pets")] == ["pets"]


def test_a_block_inside_a_night_is_part_of_it(home: Home) -> None:
    with pytest.raises(DataError), night_recorded("digits", {}), night_recorded("digits", {}):
        raise DataError("bad")
    assert len(nights_of_home(home, "digits")) == 1


def test_an_unknown_recipe_has_no_night(home: Home) -> None:
    with pytest.raises(SettingError, match="no such recipe"), night_recorded("nothing", {}):
        pass
    assert not (home.root / "nights").exists()


def test_a_killed_night_is_shown_as_interrupted_and_closed_by_the_next(home: Home) -> None:
    code = (
        "import os, signal\n"
        "from tasks.night import night_recorded\n"
        "with night_recorded('digits', {}):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    died = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert died.returncode == -9
    assert [found.outcome for found in open_nights(home, "digits")] == ["running"]
    with run_lock(home, "digits"):  # as if the process were still at work
        assert [found.outcome for found in nights_of(home, "digits", None)] == ["running"]
    (shown,) = nights_of(home, "digits", None)
    assert (shown.outcome, "kill" in shown.cause) == ("interrupted", True)

    with night_recorded("digits", {}) as tonight, run_lock(home, "digits"):
        close_killed_nights(home, "digits")
        assert open_nights(home, "digits") == [tonight.record]
        tonight.failed(DataError("bad"))
    assert [found.outcome for found in nights_of_home(home, "digits")] == ["interrupted", "failed"]
    assert open_nights(home, "digits") == []


def test_other_homes_with_the_same_store_see_a_night_once(home: Home, tmp_path: Path) -> None:
    uri, other = f"sqlite:///{tmp_path / 'shared.db'}", Home(tmp_path / "other")
    client = connect(uri, home)
    ours = night("20260301T0330-a", outcome="failed", cause="the disk is full", metric="accuracy", value=0.5)
    theirs = night("20260302T0330-b", other.identity, outcome="kept", train_rows=10)
    for where, record in ((home, ours), (other, theirs)):
        record_night(client, where, uri, record)
        record_night(client, where, uri, record)  # a lost answer is asked for again
        keep_sent(where, record)
    assert nights_of(home, "digits", uri) == nights_of(other, "digits", uri) == [ours, theirs]
    assert nights_of(Home(tmp_path / "third"), "digits", uri) == [ours, theirs]
    assert nights_of(home, "digits", None) == [ours]  # its files, without the store

    experiment = client.get_experiment_by_name(experiment_of_nights("digits"))
    runs = {run.data.tags["evergreen.night"]: run for run in client.search_runs([experiment.experiment_id])}
    assert len(runs) == 2
    failed = runs[ours.night]
    assert (failed.info.status, failed.data.tags[CAUSE_TAG]) == ("FAILED", "the disk is full")
    assert failed.data.metrics["accuracy"] == 0.5


def test_nights_without_mlflow_are_sent_by_the_next_one(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AFTER_ERROR_S", 300.0)  # on a busy machine
    (tmp_path / "away").touch()  # a file where the store's folder will be
    uri = f"sqlite:///{tmp_path / 'away' / 'shared.db'}"
    overrides = {"tracking": {"uri": uri}}
    ended_by(DataError("one"), overrides)
    assert len(unsent_nights(home, "digits")) == 1
    (tmp_path / "away").unlink()
    connect(uri, home)  # a new store takes long to make
    ended_by(DataError("two"), overrides)
    assert unsent_nights(home, "digits") == []
    assert [found.cause for found in nights_of(Home(tmp_path / "other"), "digits", uri)] == ["one", "two"]


def test_the_embedded_store_is_read_without_mlflow(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = night("20260301T0330-a", outcome="first", cause="no model is in service")
    record_night(connect(None, home), home, None, sent)
    monkeypatch.setitem(sys.modules, "mlflow", None)  # an import fails
    assert find_nights("digits", home) == ("digits", [sent])


def test_a_night_whose_record_cannot_be_written_keeps_its_error(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "keep_unsent", full)
    monkeypatch.setattr(module, "keep_open", full)
    ended_by(DataError("birds.csv is empty"))
    assert nights_of_home(home, "digits") == []


def test_a_model_without_nights_is_refused_with_those_that_have_some(home: Home) -> None:
    with pytest.raises(SettingError, match=r"no such model or recipe\. No night is recorded here yet"):
        find_nights("bird", home)
    keep_unsent(home, night("20260301T0330-a", model="birds"))
    with pytest.raises(
        SettingError, match=r"model 'bird': no such model or recipe\. Models with nights here: birds"
    ):
        find_nights("bird", home)


def test_a_night_without_a_run_is_told_beside_an_older_run(home: Home) -> None:
    assert ended_without_files(home, "digits", "0123456789abcdef") is None
    keep_sent(home, night("20260301T0330-a", outcome="first", run_key="0123456789abcdef01", version="1"))
    assert ended_without_files(home, "digits", "0123456789abcdef") is None
    refused = night("20260302T0330-b", outcome="refused", cause="gate.floor: 2 is too much")
    keep_unsent(home, refused)
    keep_unsent(home, night("20260303T0330-c", recipe="birds", outcome="failed"))
    assert ended_without_files(home, "digits", "0123456789abcdef") == refused
    keep_unsent(home, night("20260304T0330-d", outcome="failed", run_key="0123456789abcdef01"))
    assert ended_without_files(home, "digits", "0123456789abcdef") is None
