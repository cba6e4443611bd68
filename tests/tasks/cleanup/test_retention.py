"""What `evergreen gc` removes, and that it removes nothing that is needed."""

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE
from verified_run import made

import tasks.cleanup.removals
from flows.cli.main import main
from tasks.cleanup import recipe_runs, retention
from tasks.cleanup.old_searches import old_searches
from tasks.cleanup.recipe_runs import runs_of
from tasks.cleanup.retention import collect
from tasks.registry.aliases import ROLLED_BACK_TAG
from tasks.registry.lock import LOCK_TAG, read_claims
from tasks.registry.removal import delete_version
from tasks.trackers.mlflow_run import HOME_TAG, RUN_KEY_TAG, connect
from tasks.verify import verify
from training.attempts.fence import Fence, SupersededError
from training.errors import EXIT_RESOURCE, SettingError, TransientError
from training.plan import RunPlan
from training.records import Release
from training.search.records import Search, Trial
from training.storage.paths import HOME_VARIABLE, Home, RunPaths
from training.storage.record_files import read_record, write_record
from training.storage.run_lock import run_lock

pytestmark = pytest.mark.usefixtures("prefect_harness", "own_tmp")


class Kept(NamedTuple):
    """A home with finished runs of recipe digits, and whether an alias points to each run's version."""

    home: Home
    runs: list[RunPaths]
    serving: list[bool]


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Release]:
    home = Home(tmp_path_factory.mktemp("retention") / "home")
    data = {"max_train_rows": 300, "max_test_rows": 100}
    gate = {"floor": 0.0, "max_class_drop": 1.0}
    return home, made(home, data=data, training={"epochs": 1}, gate=gate)[0]


@pytest.fixture
def kept(one_run: tuple[Home, Release], tmp_path: Path) -> Kept:
    """Five finished runs, the newest first; the last run has a dataset of its own, the others share a dataset.

    The first run is real; the others are copies of it with different run keys, versions and MLflow runs.
    """
    made_in, release = one_run
    home = Home(tmp_path / "home")
    shutil.copytree(made_in.root, home.root)
    client = connect(None, home)
    real = home.run("digits", release.run_key)
    source, runs = client.get_model_version("digits", release.version), [real]
    for number in range(1, 5):
        key = f"{number:064x}"[::-1]
        copy = RunPaths(shutil.copytree(real.root, home.run("digits", key).root))
        experiment = client.get_run(release.mlflow_run_id).info.experiment_id
        run_id = client.create_run(experiment).info.run_id
        client.set_terminated(run_id)
        version = client.create_model_version("digits", source.source, run_id=run_id).version
        edit(copy.release, {"run_key": key, "version": str(version), "mlflow_run_id": run_id})
        other = {"fingerprint": "f" * 64} if number == 4 else {}
        edit(copy.ingredients, {"run_key": key} | other)
        for file in (copy.release, copy.ingredients, copy.metrics, copy.attempts):
            os.utime(file, (time.time() - 3600 * number,) * 2)
        runs.append(copy)
        if number < 3:
            client.set_registered_model_alias("digits", ("previous", "challenger")[number - 1], version)
    old = shutil.copytree(
        home.dataset("digits", release.dataset_fingerprint), home.dataset("digits", "f" * 64)
    )
    os.utime(old, (0, 0))
    # As left by a crash right after the dataset was finished.
    raw = home.raw_rows("digits", release.dataset_fingerprint)
    raw.mkdir(parents=True, exist_ok=True)
    (raw / "raw-00000.parquet").write_bytes(b"rows")
    return Kept(home, runs, [True, True, True, False, False])


def edit(file: Path, change: dict[str, Any]) -> None:
    """Change a record and remove its checksum: records of earlier versions have none, so readers accept that."""
    record = json.loads(file.read_text())
    record.pop("sha256_of_the_rest", None)
    file.write_text(json.dumps(record | change))


def files(home: Home) -> set[Path]:
    return {
        file
        for kind in ("runs", "datasets", "raw")
        for file in (home.root / kind).rglob("*")
        if file.is_file()
    }


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Modification time and content of each file below `folder`, and modification time of each folder."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in (folder, *folder.rglob("*"))
    }


@pytest.mark.extended
@pytest.mark.parametrize("with_store", [True, False])
def test_a_dry_run_changes_nothing(kept: Kept, with_store: bool) -> None:
    left = kept.runs[0].root / ".release.json.cut.tmp"
    left.write_text("half")
    (kept.home.runs("digits") / ".gone.removed").mkdir()
    shutil.rmtree(kept.home.locks, ignore_errors=True)
    if not with_store:
        (kept.home.root / "mlflow.db").unlink()
    before = everything(kept.home.root)
    command = [
        sys.executable,
        "-m",
        "flows.cli.main",
        "gc",
        "--keep",
        "1",
        "--versions",
        "--dry-run",
        "--json",
    ]
    done = subprocess.run(
        command,
        env=os.environ | {"EVERGREEN_HOME": str(kept.home.root)},
        capture_output=True,
        text=True,
        check=True,
    )
    collection = json.loads(done.stdout.splitlines()[-1])
    assert {"run", "dataset"} <= {removal["kind"] for removal in collection["removals"]}
    assert everything(kept.home.root) == before


def test_a_dry_run_without_a_home_makes_none(tmp_path: Path) -> None:
    assert collect(Home(tmp_path / "none"), keep=1, dry_run=True).left_alone == {}
    assert list(tmp_path.iterdir()) == []


def test_a_version_under_any_alias_is_in_service(kept: Kept) -> None:
    release = Release.model_validate_json(kept.runs[4].release.read_text())
    connect(None, kept.home).set_registered_model_alias("digits", "canary", release.version)
    collect(kept.home, keep=1, versions=True)
    assert kept.runs[4].root.is_dir()
    assert not kept.runs[3].root.is_dir()


def test_a_registry_that_does_not_answer_is_asked_once(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[RunPlan] = []

    def away(plan: RunPlan) -> None:
        asked.append(plan)
        raise TransientError("MLflow does not answer")

    monkeypatch.setattr(recipe_runs, "connect_once", away)
    collect(kept.home, keep=1)
    assert len(asked) == 1
    assert all(run.root.is_dir() for run in kept.runs)
    assert "kept with all others of the registry, because its registry can't be read" in caplog.text


def test_a_dry_run_says_what_a_run_removes(kept: Kept) -> None:
    before = files(kept.home)
    would = collect(kept.home, keep=1, dry_run=True)
    assert files(kept.home) == before
    assert {removal.kind for removal in would.removals} == {"run", "checkpoints", "dataset", "raw rows"}
    sizes = {
        removal.name: sum(f.stat().st_size for f in before if f.is_relative_to(kept.home.root / removal.name))
        for removal in would.removals
    }
    assert {removal.name: removal.bytes for removal in would.removals} == sizes
    assert all(sizes.values())

    assert collect(kept.home, keep=1) == would
    gone = {file for name in sizes for file in before if file.is_relative_to(kept.home.root / name)}
    assert files(kept.home) == before - gone
    assert collect(kept.home, keep=1).removals == ()


def test_what_is_in_service_or_new_stays(kept: Kept) -> None:
    collect(kept.home, keep=1)
    assert [run.root.is_dir() for run in kept.runs] == kept.serving
    assert [run.checkpoints.is_dir() for run in kept.runs] == [True, False, False, False, False]
    assert not kept.home.dataset("digits", "f" * 64).exists()
    assert [finding.detail for finding in verify(kept.runs[0], kept.home) if finding.ok is False] == []


def test_as_many_stay_as_asked_for(kept: Kept) -> None:
    collect(kept.home, keep=4)
    assert [run.root.is_dir() for run in kept.runs] == [True, True, True, True, False]
    assert not kept.home.dataset("digits", "f" * 64).exists()


def test_the_dataset_of_a_kept_run_stays(kept: Kept) -> None:
    collect(kept.home, keep=5)
    assert kept.home.dataset("digits", "f" * 64).exists()


@pytest.mark.extended
def test_what_was_removed_comes_back_bit_for_bit(one_run: tuple[Home, Release]) -> None:
    home, release = one_run
    shutil.rmtree(home.run("digits", release.run_key).root)
    shutil.rmtree(home.datasets)
    data = {"max_train_rows": 300, "max_test_rows": 100}
    again, _ = made(home, data=data, training={"epochs": 1}, gate={"floor": 0.0, "max_class_drop": 1.0})
    assert not again.reused
    assert (again.version, again.weights_digest) == (release.version, release.weights_digest)


def test_an_unfinished_run_stays_for_a_month(kept: Kept) -> None:
    run = kept.runs[4]
    run.release.unlink()
    collect(kept.home, keep=1)
    assert run.root.is_dir()
    assert kept.home.dataset("digits", "f" * 64).exists()
    for file in (run.ingredients, run.metrics, run.attempts):
        os.utime(file, (time.time() - 31 * 86400,) * 2)
    if list(run.beats.glob("*")):  # a worker on another machine sends heartbeats
        assert ("run", "not finished, no change for 31 days") not in {
            (removal.kind, removal.why) for removal in collect(kept.home, keep=1).removals
        }
    for file in run.beats.glob("*"):
        os.utime(file, (time.time() - 31 * 86400,) * 2)
    removals = {(removal.kind, removal.why) for removal in collect(kept.home, keep=1).removals}
    assert ("run", "not finished, no change for 31 days") in removals
    assert not run.root.exists()


def test_a_search_goes_with_its_last_trial_or_after_a_month(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    """A dry run names the same searches as the removal that follows."""
    trial = kept.runs[4]  # removed with keep=1, while another trial has never begun

    def searched(key: str, run_key: str, days: float = 0.0) -> Path:
        folder = kept.home.search("digits", key * 64)
        trials = tuple(
            Trial(number=n, values={}, run_key=trial_key)
            for n, trial_key in enumerate([run_key, "9" * 64], 1)
        )
        record = Search(
            recipe="digits",
            key=key * 64,
            problem="classification",
            metric="accuracy",
            space={},
            scheduler="asha",
            seed=0,
            trials=trials,
        )
        folder.mkdir(parents=True)
        write_record(folder / "search.json", record, folder.name)
        for path in (folder / "search.json", folder):
            os.utime(path, (time.time() - 86400 * days,) * 2)
        return folder

    newest = read_record(kept.runs[0].release, Release, kept.runs[0].root.name).run_key
    with_trial, without = searched("a", newest), searched("b", trial.root.name + "0" * 48)
    old, damaged = searched("c", newest, days=31), searched("d", newest)
    (damaged / "search.json").write_text("{")

    def removed(dry_run: bool) -> set[Path]:
        removals = collect(kept.home, keep=1, dry_run=dry_run).removals
        return {kept.home.root / removal.name for removal in removals if removal.kind == "search"}

    expected = removed(dry_run=True)
    assert expected == {without, old}
    assert f"{damaged / 'search.json'}: damaged" in caplog.text
    assert removed(dry_run=False) == expected
    assert set(kept.home.searches("digits").iterdir()) == {with_trial, damaged}


def test_what_an_interrupted_removal_left_goes_with_the_next(kept: Kept) -> None:
    half = kept.runs[4].root.rename(kept.runs[4].root.with_name(f".{kept.runs[4].root.name}.removed"))
    collect(kept.home, keep=5)
    assert not half.exists()


def test_damaged_datasets_go_and_never_count_as_the_newest(kept: Kept) -> None:
    right = kept.home.dataset("digits", "f" * 64)
    damaged = Path(shutil.copytree(right, right.with_name(f"{right.name}.damaged-0")))
    collect(kept.home, keep=5)
    assert (damaged.exists(), right.exists()) == (False, True)


def test_a_recipe_with_an_active_run_is_left_alone(kept: Kept) -> None:
    with run_lock(kept.home, "digits"):
        collection = collect(kept.home, keep=1)
    assert collection.removals == ()
    assert "another run holds" in collection.left_alone["digits"]


def test_a_registry_that_can_not_be_asked_keeps_its_runs(kept: Kept) -> None:
    (kept.home.root / "mlflow.db").write_bytes(b"no database")
    assert not [removal for removal in collect(kept.home, keep=1).removals if removal.kind == "run"]


def test_a_registry_that_stops_answering_ends_the_removals_of_its_recipe_alone(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise MlflowException("the server went away", error_code=TEMPORARILY_UNAVAILABLE)

    monkeypatch.setattr(MlflowClient, "delete_model_version", away)
    collection = collect(kept.home, keep=1, versions=True)
    assert "the server went away" in collection.left_alone["digits"]
    monkeypatch.undo()
    assert [removal.kind for removal in collect(kept.home, keep=1, versions=True).removals].count(
        "version"
    ) == 2


def test_versions_go_only_when_asked_and_never_from_service(kept: Kept) -> None:
    client = connect(None, kept.home)
    releases = [read_record(run.release, Release, run.root.name) for run in kept.runs]
    collection = collect(kept.home, keep=1, versions=True)
    assert {removal.name for removal in collection.removals if removal.kind == "version"} == {
        f"digits version {release.version}" for release in releases[3:]
    }
    left = {str(version.version) for version in client.search_model_versions("name = 'digits'")}
    assert left == {release.version for release in releases[:3]}
    stages = [client.get_run(release.mlflow_run_id).info.lifecycle_stage for release in releases]
    assert stages == ["active"] * 3 + ["deleted"] * 2


def test_a_version_of_another_model_keeps_its_run(kept: Kept) -> None:
    """The run was registered under a second name; its release names the model of the first name."""
    client, run = connect(None, kept.home), kept.runs[4]
    release = read_record(run.release, Release, run.root.name)
    source = client.get_model_version("digits", release.version).source
    client.create_registered_model("second")
    tags = {RUN_KEY_TAG: release.run_key}
    client.create_model_version("second", source, run_id=release.mlflow_run_id, tags=tags)
    client.set_registered_model_alias("second", "champion", "1")
    collect(kept.home, keep=1, versions=True)
    assert run.root.is_dir()
    assert client.get_run(release.mlflow_run_id).info.lifecycle_stage == "active"
    client.delete_registered_model_alias("second", "champion")
    collect(kept.home, keep=1, versions=True)
    assert not run.root.exists()
    # Version 1 of "second" has its files.
    assert client.get_run(release.mlflow_run_id).info.lifecycle_stage == "active"


def test_a_champion_whose_release_was_not_written_keeps_its_run(kept: Kept) -> None:
    client, run = connect(None, kept.home), kept.runs[4]
    release = read_record(run.release, Release, run.root.name)
    client.set_model_version_tag("digits", release.version, RUN_KEY_TAG, release.run_key)
    client.set_registered_model_alias("digits", "champion", release.version)
    run.release.unlink()
    for file in (run.ingredients, run.metrics, run.attempts, *run.beats.glob("*")):
        os.utime(file, (time.time() - 31 * 86400,) * 2)
    collect(kept.home, keep=1)
    assert run.root.is_dir()
    client.delete_registered_model_alias("digits", "champion")
    collect(kept.home, keep=1)
    assert not run.root.exists()


def test_a_version_that_another_home_made_with_the_same_run_key_is_not_deleted(kept: Kept) -> None:
    client, run = connect(None, kept.home), kept.runs[4]
    release = read_record(run.release, Release, run.root.name)
    experiment = client.get_run(release.mlflow_run_id).info.experiment_id
    theirs = client.create_run(experiment, tags={HOME_TAG: "other"}).info.run_id
    source = client.get_model_version("digits", release.version).source
    tags = {RUN_KEY_TAG: release.run_key}
    version = client.create_model_version("digits", source, run_id=theirs, tags=tags).version
    edit(run.release, {"version": str(version)})
    os.utime(run.release, (0, 0))
    collect(kept.home, keep=1, versions=True)
    assert not run.root.exists()
    assert client.get_model_version("digits", version).run_id == theirs


def test_a_run_that_mlflow_calls_running_stays(kept: Kept) -> None:
    """It is judged again on a machine that shares the home; if it was killed, the recipe's next run closes it."""
    client, run = connect(None, kept.home), kept.runs[4]
    release = read_record(run.release, Release, run.root.name)
    client.update_run(release.mlflow_run_id, status="RUNNING")
    would = collect(kept.home, keep=1, versions=True, dry_run=True)
    spared = {f"runs/digits/{run.root.name}", f"digits version {release.version}"}
    assert not spared & {removal.name for removal in would.removals}
    collect(kept.home, keep=1, versions=True)
    assert run.root.is_dir()
    client.set_terminated(release.mlflow_run_id, "KILLED")
    collect(kept.home, keep=1, versions=True)
    assert not run.root.exists()


def test_the_fence_of_a_removed_run_is_closed_first(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that still lives, on a machine that shares the home, writes nothing into a run that is removed."""
    run = kept.runs[4]
    worker = Fence.begin(run, "elsewhere/1/a")
    worker.check()
    refused = []
    remove = tasks.cleanup.removals.remove_folder

    def looking(folder: Path, strict: bool) -> None:
        if folder == run.root:
            with pytest.raises(SupersededError):
                worker.check()
            refused.append(folder)
        remove(folder, strict)

    monkeypatch.setattr(tasks.cleanup.removals, "remove_folder", looking)
    collect(kept.home, keep=1)
    assert refused == [run.root]
    assert not run.root.exists()


def test_what_frees_space_without_writing_goes_first_on_a_full_disk(kept: Kept) -> None:
    """By a limit of this process, no file can grow, as on a full disk."""
    checkpoints = kept.runs[1].checkpoints
    assert checkpoints.is_dir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        collection = collect(kept.home, keep=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not checkpoints.exists()
    assert kept.runs[4].root.exists()
    assert "file would exceed the size limit" in collection.failed["digits"]
    again = collect(kept.home, keep=2)
    assert not again.failed
    assert not kept.runs[4].root.exists()


def test_a_version_of_another_run_is_not_deleted(kept: Kept) -> None:
    """A registry that was deleted and created again numbers its versions from 1 again."""
    client, run = connect(None, kept.home), kept.runs[4]
    release = read_record(run.release, Release, run.root.name)
    other = read_record(kept.runs[3].release, Release, kept.runs[3].root.name)
    edit(run.release, {"version": other.version})
    os.utime(run.release, (0, 0))
    collect(kept.home, keep=4, versions=True)
    assert not run.root.exists()
    assert client.get_model_version("digits", other.version).run_id == other.mlflow_run_id
    assert client.get_run(release.mlflow_run_id).info.lifecycle_stage == "active"


def test_the_run_in_a_former_experiment_goes_with_its_version(kept: Kept) -> None:
    """After `tracking.experiment` was changed, the release names a newer run than the version."""
    client, run = connect(None, kept.home), kept.runs[4]
    release = read_record(run.release, Release, run.root.name)
    tags, former = {RUN_KEY_TAG: release.run_key}, client.create_experiment("former")
    first, theirs = (
        client.create_run(former, tags=tags | {HOME_TAG: home}).info.run_id
        for home in (kept.home.identity, "other")
    )
    client.set_terminated(first)
    source = client.get_model_version("digits", release.version).source
    client.delete_model_version("digits", release.version)
    version = client.create_model_version("digits", source, run_id=first, tags=tags).version
    edit(run.release, {"version": str(version)})
    os.utime(run.release, (0, 0))
    collect(kept.home, keep=1, versions=True)
    assert not run.root.exists()
    assert str(version) not in {
        model_version.version for model_version in client.search_model_versions("name = 'digits'")
    }
    stages = [
        client.get_run(run_id).info.lifecycle_stage for run_id in (first, release.mlflow_run_id, theirs)
    ]
    assert stages == ["deleted", "deleted", "active"]


def test_a_version_that_was_rolled_back_is_never_deleted(kept: Kept) -> None:
    """Its tag is the record by which equal weights are not promoted again."""
    client, run = connect(None, kept.home), kept.runs[4]
    release = read_record(run.release, Release, run.root.name)
    client.set_model_version_tag("digits", release.version, ROLLED_BACK_TAG, "bad")
    would = collect(kept.home, keep=1, versions=True, dry_run=True)
    assert collect(kept.home, keep=1, versions=True) == would
    name = f"digits version {release.version}"
    assert name not in {removal.name for removal in would.removals}
    (why,) = [removal.why for removal in would.removals if removal.name == f"runs/digits/{run.root.name}"]
    assert why.endswith(f"; {name} stays in MLflow, because it was rolled back")
    assert not run.root.exists()
    delete_version(client, kept.home, release)  # a rollback may come after the versions were listed
    assert ROLLED_BACK_TAG in client.get_model_version("digits", release.version).tags
    assert client.get_run(release.mlflow_run_id).info.lifecycle_stage == "active"


def test_the_dataset_of_a_run_with_a_damaged_release_stays(kept: Kept) -> None:
    kept.runs[4].release.write_text("{")
    collection = collect(kept.home, keep=1)
    assert "dataset" not in {removal.kind for removal in collection.removals}
    assert kept.runs[4].root.is_dir()
    assert kept.home.dataset("digits", "f" * 64).is_dir()


def test_all_datasets_of_a_recipe_stay_when_a_plan_is_damaged(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    kept.runs[4].ingredients.write_text("{")
    right = kept.home.dataset("digits", "f" * 64)
    damaged = Path(shutil.copytree(right, right.with_name(f"{right.name}.damaged-0")))
    rows = kept.home.raw_rows("digits", "e" * 64)
    rows.mkdir(parents=True)
    os.utime(rows, (0, 0))
    collection = collect(kept.home, keep=1)
    assert {removal.name for removal in collection.removals if removal.kind == "dataset"} == {
        f"datasets/digits/{damaged.name}"
    }
    assert (right.is_dir(), rows.is_dir()) == (True, True)
    assert "no dataset of recipe digits is removed" in caplog.text


def test_the_datasets_of_damaged_runs_are_not_known_when_a_plan_is_damaged(kept: Kept) -> None:
    assert runs_of(kept.home, "digits").damaged == {}
    kept.runs[3].release.write_text("{")
    kept.runs[4].ingredients.write_text("{")
    runs = runs_of(kept.home, "digits")
    plan = read_record(kept.runs[3].ingredients, RunPlan, kept.runs[3].root.name)
    assert runs.damaged == {kept.runs[3].root.name: plan.fingerprint, kept.runs[4].root.name: None}
    assert len(runs.runs) == 3


def test_a_lock_that_a_killed_process_left_goes(kept: Kept) -> None:
    """Claims of a living process and of another home are kept."""
    client, here = connect(None, kept.home), socket.gethostname()
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    claims = {
        "a": {"home": kept.home.identity, "host": here, "pid": gone.pid},
        "b": {"home": kept.home.identity, "host": here, "pid": os.getpid()},
        "c": {"home": "another", "host": here, "pid": gone.pid},
    }

    def left() -> set[str]:
        return set(read_claims(client, "digits"))

    for token, claim in claims.items():
        client.set_registered_model_tag("digits", LOCK_TAG + token, json.dumps(claim))
    would = collect(kept.home, keep=5, dry_run=True)
    assert [removal.name for removal in would.removals if removal.kind == "lock"] == [
        f"digits tag {LOCK_TAG}a"
    ]
    assert left() >= set(claims)

    for token in ("b", "c"):  # a lock in use would be waited for
        client.delete_registered_model_tag("digits", LOCK_TAG + token)
    assert [removal.why for removal in collect(kept.home, keep=5).removals if removal.kind == "lock"] == [
        f"left by process {gone.pid} on {here}, which has ended"
    ]
    assert [claim.turn is None for claim in read_claims(client, "digits").values()] == [False]
    assert not [removal for removal in collect(kept.home, keep=5).removals if removal.kind == "lock"]


def test_no_run_to_keep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="at least 1 finished run"):
        collect(Home(tmp_path), keep=0)


def test_a_run_stays_while_a_kept_run_starts_from_its_weights(kept: Kept) -> None:
    parent, child = kept.runs[4], kept.runs[0]
    weights = str(parent.root / "model" / "model.safetensors")
    start = {"reference": weights, "digest": "a" * 64}
    edit(child.ingredients, {"initial": start})
    removed = [removal.name for removal in collect(kept.home, keep=1).removals if removal.kind == "run"]
    assert removed == [kept.runs[3].root.relative_to(kept.home.root).as_posix()]
    assert parent.root.is_dir()
    # A chain: the parent of a run that is kept for its weights stays, too.
    edit(parent.ingredients, {"initial": start | {"reference": str(kept.runs[2].root / "model")}})
    kept_for_weights = {
        removal.name for removal in collect(kept.home, keep=1, dry_run=True).removals if removal.kind == "run"
    }
    assert kept.runs[2].root.relative_to(kept.home.root).as_posix() not in kept_for_weights
    edit(child.ingredients, {"initial": None})
    other = kept.home.run("leaves", "b" * 64)  # of another recipe
    shutil.copytree(child.root, other.root)
    edit(other.ingredients, {"run_key": "b" * 64, "initial": start})
    collect(kept.home, keep=1)
    assert parent.root.is_dir()
    shutil.rmtree(other.root)
    collect(kept.home, keep=1)
    assert not parent.root.exists()


def test_a_run_stays_while_a_kept_run_starts_from_its_version(kept: Kept) -> None:
    parent, child = kept.runs[4], kept.runs[0]
    version = read_record(parent.release, Release, parent.root.name).version
    initial = {"reference": f"version:{version}", "model": "digits", "version": version, "digest": "a" * 64}
    edit(child.ingredients, {"initial": initial})
    collect(kept.home, keep=1)
    assert parent.root.is_dir()
    edit(child.ingredients, {"initial": initial | {"reference": "champion"}})
    collect(kept.home, keep=1)
    assert not parent.root.exists()


def test_checkpoints_that_an_interrupted_gc_left_go_with_the_next(kept: Kept) -> None:
    half = kept.runs[1].root / ".checkpoints.removed"
    half.mkdir()
    collect(kept.home, keep=5, dry_run=True)
    assert half.is_dir()
    collect(kept.home, keep=5)
    assert not half.exists()


def test_an_error_of_one_recipe_stops_no_other_removal(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(kept.home.runs("digits"), kept.home.runs("another"))
    removed = tasks.cleanup.removals.remove_folder

    def refused(folder: Path, strict: bool) -> None:
        if "another" in folder.parts:
            raise SettingError("the account may not delete")
        removed(folder, strict)

    monkeypatch.setattr(tasks.cleanup.removals, "remove_folder", refused)
    collection = collect(kept.home, keep=1)
    assert collection.failed == {"another": "the account may not delete"}
    assert [removal.recipe for removal in collection.removals if removal.kind == "run"] == ["digits"] * 2
    monkeypatch.setenv(HOME_VARIABLE, str(kept.home.root))
    assert main(["gc", "--keep", "1"]) == EXIT_RESOURCE
    assert "the account may not delete" in capsys.readouterr().out


def test_a_run_that_is_removed_meanwhile_is_none(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = kept.runs[0].ingredients.with_name("removed") / "ingredients.json"
    monkeypatch.setattr(recipe_runs, "newest_first", lambda *_: [gone, kept.runs[1].ingredients])
    assert [run.paths for run in runs_of(kept.home, "digits").runs] == [kept.runs[1]]


def test_folders_of_a_user_in_a_home_are_no_searches_and_no_raw_rows(home: Home) -> None:
    folders = [home.searches("digits") / "notes", home.raw / "digits" / "2019"]
    for folder in folders:
        folder.mkdir(parents=True)
        os.utime(folder, (0, 0))
    assert list(old_searches(home, "digits", set())) == []
    assert list(retention._data(home, "digits", set())) == []
