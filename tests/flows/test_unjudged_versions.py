"""A version whose run was killed before its verdict, and the next retraining of the same recipe."""

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow.artifacts
import pytest

from flows import retrain as flow
from flows.retrain import retrain
from tasks import register as module
from tasks.registry.aliases import VERDICT_TAG, champion_of
from tasks.registry.unjudged import NOT_JUDGED
from tasks.trackers.mlflow_run import RUN_KEY_TAG, connect
from tasks.verify import verify
from training import identity
from training.errors import DataError, SettingError
from training.records import Release
from training.storage.paths import Home, RunPaths
from training.storage.record_files import read_record

pytestmark = pytest.mark.usefixtures("prefect_harness")


class Killed(BaseException):
    """A power cut."""


def run(seed: int) -> Release:
    return retrain(
        "digits",
        {
            "seed": seed,
            "training": {"epochs": 2},
            "scaling": {"num_workers": 0},
            "tracking": {"system_metrics": False},
            "gate": {"floor": 0.5},
        },
    )


@pytest.fixture
def killed(home: Home, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow's client of a home whose version 1 has no verdict."""

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module, "judge", die)
        with pytest.raises(Killed):
            run(seed=0)
    client = connect(None, home)
    assert VERDICT_TAG not in client.get_model_version("digits", "1").tags
    return client


def statuses(client: Any) -> list[str]:
    """The statuses in MLflow of the runs of the versions 1 and 2."""
    runs = [client.get_model_version("digits", number).run_id for number in ("1", "2")]
    return [client.get_run(run_id).info.status for run_id in runs]


@pytest.mark.extended
def test_the_next_run_judges_both_versions(killed: Any, home: Home) -> None:
    release = run(seed=1)
    ran = identity.latest_run(home, "digits")
    assert ran is not None
    assert ran[0] == home.run("digits", release.run_key)  # not the run that was judged late
    verdicts = [killed.get_model_version("digits", number).tags[VERDICT_TAG] for number in ("1", "2")]
    assert release.version == "2"
    assert verdicts[0] == "promote"
    assert release.evaluation is not None
    assert release.verdict.champion_version == "1"
    assert statuses(killed) == ["FINISHED", "FINISHED"]


def run_of_version(client: Any, home: Home, number: str) -> RunPaths:
    return home.run("digits", client.get_model_version("digits", number).tags[RUN_KEY_TAG])


@pytest.mark.extended
def test_a_run_that_is_judged_late_is_finished(killed: Any, home: Home) -> None:
    """It has a report and a release, so `verify` finds nothing, and its own command finds nothing to do."""
    run(seed=1)
    late = run_of_version(killed, home, "1")
    release = read_record(late.release, Release, late.root.name)
    assert (release.version, release.verdict.promote) == ("1", True)
    assert late.report.is_file()
    assert "compute" in release.goodput.parts
    assert release.goodput.total_s == pytest.approx(sum(release.goodput.parts.values()))
    assert [finding for finding in verify(late, home) if finding.ok is False] == []
    again = run(seed=0)
    assert (again.reused, again.version) == (True, "1")
    assert statuses(killed) == ["FINISHED", "FINISHED"]


@pytest.mark.extended
def test_a_run_whose_late_report_fails_stays_unfinished_with_its_verdict(
    killed: Any, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = flow.report

    def failing(plan: Any, *others: Any) -> Any:
        report(plan, *others)
        if plan.settings.seed == 0:
            raise AttributeError("module 'torch' has no attribute 'gone'")

    with monkeypatch.context() as patch:
        patch.setattr(flow, "report", failing)
        assert run(seed=1).version == "2"
    late = run_of_version(killed, home, "1")
    assert killed.get_model_version("digits", "1").tags[VERDICT_TAG] == "promote"
    assert statuses(killed) == ["FAILED", "FINISHED"]
    assert not late.release.exists()
    # I10: it is not finished.
    assert {finding.invariant for finding in verify(late, home) if finding.ok is False} == {"I10"}
    assert not run(seed=0).reused
    assert [finding for finding in verify(late, home) if finding.ok is False] == []


def damage(client: Any, home: Home) -> None:
    """Change a byte of the model of version 1."""
    source = client.get_model_version("digits", "1").source
    (model,) = home.root.rglob(f"{source.rpartition('/')[2]}/**/model.pt2")
    content = bytearray(Path(model).read_bytes())
    content[len(content) // 2] ^= 0xFF
    Path(model).write_bytes(content)


@pytest.mark.extended
def test_a_damaged_version_without_a_verdict_is_registered_again_and_judged(killed: Any, home: Home) -> None:
    damage(killed, home)
    assert run(seed=1).version == "3"
    verdicts = [killed.get_model_version("digits", number).tags[VERDICT_TAG] for number in ("2", "3")]
    assert verdicts[0] == "promote"
    assert [version.version for version in killed.search_model_versions("name='digits'")].count("1") == 0


@pytest.mark.extended
def test_a_version_that_can_t_be_judged_holds_no_later_run_up(killed: Any, home: Home) -> None:
    """A person gave the damaged version an alias, so it is not deleted."""
    damage(killed, home)
    killed.set_registered_model_alias("digits", "approved", "1")
    release = run(seed=1)
    assert (release.version, release.alias) == ("2", "champion")
    tags = killed.get_model_version("digits", "1").tags
    assert tags[VERDICT_TAG] == NOT_JUDGED
    assert tags["evergreen.why"]
    assert champion_of(killed, "digits") == "2"
    assert run(seed=1).reused


@pytest.mark.extended
def test_an_old_recipe_that_fails_in_its_own_code_holds_no_later_run_up(
    killed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = flow.register

    def failing(plan: Any, *others: Any) -> Any:
        if plan.settings.seed == 0:
            raise AttributeError("module 'torch' has no attribute 'gone'")
        return register(plan, *others)

    monkeypatch.setattr(flow, "register", failing)
    assert run(seed=1).alias == "champion"
    tags = killed.get_model_version("digits", "1").tags
    assert (tags[VERDICT_TAG], "no attribute 'gone'" in tags["evergreen.why"]) == (NOT_JUDGED, True)
    assert statuses(killed) == ["KILLED", "FINISHED"]


@pytest.mark.extended
@pytest.mark.parametrize(
    "error", [SettingError("install a library"), ModuleNotFoundError("No module named 'x'")]
)
def test_what_a_user_can_remedy_is_tried_again_by_the_next_run(
    killed: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    register = flow.register

    def failing(plan: Any, *others: Any) -> Any:
        if plan.settings.seed == 0:
            raise error
        return register(plan, *others)

    with monkeypatch.context() as patch:
        patch.setattr(flow, "register", failing)
        assert run(seed=1).alias == "champion"
    assert VERDICT_TAG not in killed.get_model_version("digits", "1").tags
    assert run(seed=2).version == "3"
    assert VERDICT_TAG in killed.get_model_version("digits", "1").tags


@pytest.mark.extended
def test_a_full_disk_ends_the_run(killed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(flow, "register", failing)
    with pytest.raises(OSError, match="No space left"):
        run(seed=1)
    assert VERDICT_TAG not in killed.get_model_version("digits", "1").tags


@pytest.mark.extended
def test_a_version_whose_files_a_server_does_not_give_is_not_deleted(
    killed: Any, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store of the server's artifacts may be away, or refuse this machine's credentials."""

    def away(*_given: Any, **_options: Any) -> None:
        raise RuntimeError("Unable to locate credentials")

    lease: Any = SimpleNamespace(client=killed, home=home, model="digits")
    monkeypatch.setattr(mlflow.artifacts, "download_artifacts", away)
    with pytest.raises(DataError, match="Unable to locate credentials"):
        module._deleted_if_damaged(lease, "1", own_store=False)
    assert killed.get_model_version("digits", "1").version == 1
