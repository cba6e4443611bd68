"""Findings of `verify` on a run made by the real flow, and on the same run with one damage at a time."""

import fcntl
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from damage import DAMAGE, left_running
from hostile_model import arm
from verified_run import EVERY_STEPS, Subject, edit, edit_lines, flip, made

from tasks.registry.aliases import CHAMPION, PREVIOUS, TURN_TAG, VERDICT_TAG, WEIGHTS_TAG
from tasks.registry.rollback import roll_back
from tasks.trackers.mlflow_run import HOME_TAG, RUN_KEY_TAG
from tasks.trackers.provenance import FLOW_RUN_TAG
from tasks.verify import Finding
from tasks.verify.residue import SHARED_MEMORY
from training.attempts.history import read_attempts
from training.storage.paths import Home, RunPaths
from training.trainers.base import Promise

pytestmark = pytest.mark.usefixtures("prefect_harness")


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory, prefect_harness: None) -> Subject:
    return Subject(tmp_path_factory.mktemp("subject"), tmp_path_factory.mktemp("backup") / "home")


@pytest.fixture
def sound(subject: Subject) -> Iterator[Subject]:
    """The subject, undamaged before and after the test."""
    yield subject
    subject.restore()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, prefect_harness: None) -> RunPaths:
    """The same run in another home, without a failure."""
    return made(Home(tmp_path_factory.mktemp("undisturbed")))[1]


def told(findings: tuple[Finding, ...], name: str) -> Finding:
    return next(finding for finding in findings if finding.name == name)


@pytest.mark.extended
def test_a_run_that_recovered_keeps_every_promise(sound: Subject, undisturbed: RunPaths) -> None:
    findings = sound.look(against=undisturbed, recovery_bound_s=60)
    assert [finding for finding in findings if finding.ok is not True] == []
    assert {finding.invariant for finding in findings} == {f"I{number}" for number in range(1, 11)}
    first, second = read_attempts(sound.paths)
    assert (first.first_step, second.number) == (0, 2)
    assert told(findings, "steps computed twice").detail.startswith(
        f"repeated steps: 2.1: {second.reached - second.first_step}; at most {EVERY_STEPS} steps between two"
    )


def test_verify_changes_nothing(sound: Subject) -> None:
    def everything() -> dict[Path, tuple[int, int]]:
        files = [file for file in sound.home.root.rglob("*") if file.is_file()]
        return {file: (file.stat().st_size, file.stat().st_mtime_ns) for file in files}

    before = everything()
    sound.look()
    assert everything() == before


@pytest.mark.extended
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damage_breaks_the_invariant_that_covers_it(
    sound: Subject, damage: Callable[[Subject], None]
) -> None:
    damage(sound)
    assert sound.broken() == DAMAGE[damage], [finding for finding in sound.look() if not finding.ok]


def test_a_registered_model_that_would_run_code_is_not_loaded(sound: Subject, tmp_path: Path) -> None:
    files = sound.client.get_model_version_download_uri("digits", "1").removeprefix("file://")
    arm(Path(files) / "data" / "model.pt2", tmp_path / "executed")
    refused = told(sound.look(), "registered model's answers")
    assert (refused.ok, "not a model that Evergreen registered" in refused.detail) == (False, True)
    assert not (tmp_path / "executed").exists()


def test_a_rollback_on_record_is_no_damage(sound: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    sound.client.set_registered_model_alias("digits", PREVIOUS, "2")
    roll_back(sound.client, sound.home, "digits", "by test")
    findings = sound.look()
    assert told(findings, "alias").detail == "verdict promote; version 1 is previous"
    assert {finding.invariant for finding in findings if finding.ok is False} == set()


def test_a_version_of_another_home_with_the_same_run_key_is_not_this_run_s(sound: Subject) -> None:
    """Homes that share a registry may train the same run key on different machines, to different weights."""
    version = sound.client.get_model_version("digits", sound.release.version)
    experiment = sound.client.get_run(version.run_id).info.experiment_id
    other = sound.client.create_run(experiment, tags={HOME_TAG: "other"}).info.run_id
    sound.client.set_terminated(other)
    tags = dict(version.tags) | {WEIGHTS_TAG: "0" * 64, VERDICT_TAG: "keep"}
    made_there = sound.client.create_model_version("digits", version.source, run_id=other, tags=tags)
    assert [finding for finding in sound.look() if finding.ok is False] == []
    edit(sound.paths.release, lambda record: record.update(version=str(made_there.version)))
    assert told(sound.look(), "weights as registered").ok is False
    assert told(sound.look(), "one version").ok is False  # the version of this home is left over


def test_a_run_of_the_same_key_in_a_former_experiment_is_no_damage(sound: Subject) -> None:
    """After `tracking.experiment` was changed, the run is registered in the new experiment, too."""
    former = sound.client.create_experiment("former")
    ours = sound.client.get_run(sound.release.mlflow_run_id)
    tags = {name: ours.data.tags[name] for name in (HOME_TAG, RUN_KEY_TAG)}
    before = sound.client.create_run(former, tags=tags).info.run_id
    sound.client.set_terminated(before)
    assert [finding for finding in sound.look() if finding.ok is False] == []
    sound.client.update_run(before, status="RUNNING")
    assert told(sound.look(), "other MLflow runs").ok is False


def without_newer_fields(verdict: dict[str, Any]) -> None:
    """The verdict of a release that had neither this setting of the gate nor these fields."""
    del verdict["policy"]["max_class_drop"], verdict["choice"]


def test_a_verdict_of_an_earlier_release_lacks_newer_fields(sound: Subject) -> None:
    edit(sound.paths.release, lambda record: without_newer_fields(record["verdict"]))
    assert told(sound.look(), "verdict follows").ok
    edit(sound.paths.release, lambda record: record["verdict"]["policy"].update(floor=1.0))
    assert told(sound.look(), "verdict follows").ok is False


@pytest.mark.extended
def test_an_alias_that_was_moved_after_the_lock_was_lost(sound: Subject) -> None:
    """Version 2 from another home has an earlier turn than the present champion, but becomes champion."""
    sound.client.set_model_version_tag("digits", "2", TURN_TAG, "0")
    sound.client.set_registered_model_alias("digits", CHAMPION, "2")
    finding = told(sound.look(), "alias")
    assert (finding.ok, "a process that had lost the registry lock" in finding.detail) == (False, True)
    sound.client.set_model_version_tag("digits", "2", TURN_TAG, "9")
    assert "lost the registry lock" not in told(sound.look(), "alias").detail


def test_a_recovery_that_took_too_long(sound: Subject) -> None:
    assert {finding.invariant for finding in sound.look(recovery_bound_s=0.001) if finding.ok is False} == {
        "I6"
    }
    finding = told(sound.look(), "recovery")
    assert finding.ok is None
    assert "s after attempt 1; --recovery-bound" in finding.detail


# Processes and files left on the machine


def test_a_held_lock(sound: Subject) -> None:
    with (sound.home.locks / "registry-digits.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert sound.broken() == {"I8"}
    with (sound.home.locks / "run-other.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        finding = told(sound.look(), "locks")
    assert (finding.ok, finding.detail) == (None, "other runs of this home are active: run-other.lock")


def test_another_active_run_of_the_recipe_is_no_damage(sound: Subject) -> None:
    """It may be preparing data, and may hold any lock of the recipe."""
    half_done = sound.home.datasets / "digits" / ".0a1b2c3d.tmp"
    half_done.mkdir()
    with (
        (sound.home.locks / "run-digits.lock").open() as run_lock,
        (sound.home.locks / "registry-digits.lock").open() as registry_lock,
    ):
        fcntl.flock(run_lock, fcntl.LOCK_EX)
        assert told(sound.look(), "locks").ok is None
        fcntl.flock(registry_lock, fcntl.LOCK_EX)
        findings = sound.look()
    assert {finding.invariant for finding in findings if finding.ok is False} == set()
    for name in ("locks", "nothing half done"):
        finding = told(findings, name)
        assert (finding.ok, "a process works on recipe digits" in finding.detail) == (None, True)
    assert sound.broken() == {"I7"}
    half_done.rmdir()


def test_an_active_run_is_not_reported_as_left_running(sound: Subject) -> None:
    sound.paths.release.unlink()
    left_running(sound)
    assert {"I9", "I10"} <= sound.broken()
    with (sound.home.locks / "run-digits.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "I9" not in sound.broken()


def test_a_helper_process(sound: Subject) -> None:
    program = "import time; time.sleep(60)"
    command = f"{sys.executable} -c '{program}' flows.local.prefect_server >/dev/null 2>&1 & echo $!"
    environment = os.environ | {"EVERGREEN_HOME": str(sound.home.root)}
    started = subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, text=True, check=True
    )
    pid = int(started.stdout)
    try:
        if psutil.Process(pid).ppid() != 1:
            pytest.skip("orphans are not given to init here")
        assert sound.broken() == {"I8"}
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.extended
@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="no /dev/shm here")
def test_shared_memory(sound: Subject) -> None:
    file = SHARED_MEMORY / f"torch_{os.getpid()}_evergreen_test"
    file.write_bytes(b"left")
    try:
        assert sound.broken() == set()  # written after the run had ended
        during = sound.paths.release.stat().st_mtime - 0.1
        os.utime(file, (during, during))
        assert sound.broken() == {"I8"}
        with file.open():
            assert sound.broken() == set()
    finally:
        file.unlink()


# Prefect's states


@contextmanager
def harness_database(target: Path) -> Iterator[sqlite3.Connection]:
    """Put a copy of the test server's database where a home keeps the database of its own servers."""
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL

    source = str(PREFECT_API_DATABASE_CONNECTION_URL.value()).partition("///")[2]
    target.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(source)) as theirs, closing(sqlite3.connect(target)) as ours:
        theirs.backup(ours)
        yield ours


@pytest.mark.extended
def test_a_flow_run_left_running_in_the_homes_own_server(sound: Subject) -> None:
    with harness_database(sound.home.prefect / "prefect.db") as database:
        with database:
            database.execute("update flow_run set state_type = 'COMPLETED'")
        assert told(sound.look(), "Prefect, this home's server").detail == "none Running"
        with database:
            database.execute("update flow_run set state_type = 'RUNNING' where name = 'retrain-digits'")
    assert sound.broken() == {"I9"}
    holder = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('select 1 from flow_run'); input()"
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(sound.home.prefect / "prefect.db")], stdin=subprocess.PIPE
    ) as alive:
        # The process that started `alive`, this process, is older than the flow run.
        deadline = time.monotonic() + 300
        while sound.broken() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert sound.broken() == set()
        alive.communicate(b"\n")


@contextmanager
def written_by(subject: Subject, flow_run: str) -> Iterator[None]:
    """In the block, the MLflow run says that a flow run with the id `flow_run` wrote it."""
    client, run = subject.client, subject.release.mlflow_run_id
    before = client.get_run(run).data.tags[FLOW_RUN_TAG]
    client.set_tag(run, FLOW_RUN_TAG, flow_run)
    try:
        yield
    finally:
        client.set_tag(run, FLOW_RUN_TAG, before)


def test_a_flow_run_left_running_in_a_configured_server(sound: Subject) -> None:
    from prefect.client.orchestration import get_client
    from prefect.states import Running

    from flows.retrain import retrain as flow

    with get_client(sync_client=True) as client:
        left = client.create_flow_run(flow, parameters={"recipe": "digits"}, state=Running())
        try:
            finding = told(sound.look(), "Prefect, configured server")
            assert finding.ok is None
            assert str(left.id) in finding.detail
            gone = subprocess.run(
                [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True
            )
            client.update_flow_run(left.id, infrastructure_pid=f"{int(gone.stdout)}")
            # The number may be that of a process on another machine: Prefect does not name the worker's machine.
            assert told(sound.look(), "Prefect, configured server").ok is None
            with written_by(sound, str(left.id)):
                assert sound.broken() == {"I9"}
                client.update_flow_run(left.id, infrastructure_pid=f"{os.getpid()}")
                assert sound.broken() == set()
        finally:
            client.delete_flow_run(left.id)


# Comparison with another run


def test_a_run_with_other_ingredients_cannot_be_compared(sound: Subject) -> None:
    other = next(run for run in sound.home.runs("digits").iterdir() if run != sound.paths.root)
    findings = sound.look(against=RunPaths(other))
    for name in ("weights of the other run", "metrics of the other run"):
        assert told(findings, name).ok is None
        assert "settings.training.epochs: 1 -> 2" in told(findings, name).detail


@pytest.mark.extended
@pytest.mark.parametrize(
    ("damage", "broken"),
    [
        (lambda other: flip(other.model / "weights.safetensors"), {"I1"}),
        (lambda other: edit_lines(other.metrics, lambda lines: lines.pop()), {"I3"}),
        (
            lambda other: edit(other.release, lambda record: record["metrics"].update(log_loss=0.1)),
            {"I3"},
        ),
    ],
)
def test_another_run_with_other_results(
    sound: Subject,
    undisturbed: RunPaths,
    tmp_path: Path,
    damage: Callable[[RunPaths], None],
    broken: set[str],
) -> None:
    copy = RunPaths(tmp_path / "runs" / "digits" / undisturbed.root.name)
    shutil.copytree(undisturbed.root, copy.root)
    damage(copy)
    assert {finding.invariant for finding in sound.look(against=copy) if finding.ok is False} == broken


def test_a_trainer_may_permit_other_bits_after_an_interruption(
    sound: Subject, undisturbed: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = RunPaths(tmp_path / "runs" / "digits" / undisturbed.root.name)
    shutil.copytree(undisturbed.root, copy.root)
    flip(copy.model / "weights.safetensors")
    monkeypatch.setattr(
        "training.trainers.torch.trainer.promise",
        lambda _: Promise(resumes="step", same_bits_after_kill=False, any_workers=False),
    )
    finding = told(sound.look(against=copy), "weights of the other run")
    assert (finding.ok, "which trainer torch permits" in finding.detail) == (None, True)


def test_another_run_under_other_conditions(sound: Subject, undisturbed: RunPaths, tmp_path: Path) -> None:
    copy = RunPaths(tmp_path / "runs" / "digits" / undisturbed.root.name)
    shutil.copytree(undisturbed.root, copy.root)
    flip(copy.model / "weights.safetensors")
    for file in copy.checkpoints.glob("*/MANIFEST.json"):
        edit(file, lambda manifest: manifest["contract"].update(threads="7"))
    finding = told(sound.look(against=copy), "weights of the other run")
    assert finding.ok is None
    assert '"threads":"7"' in finding.detail
