"""What `verify` says of a run that was made by the real flow, and of the same run with one thing wrong."""

import fcntl
import json
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
import pyarrow.parquet as pq
import pytest

from flows.retrain import SettingsForm, retrain
from tasks.registry import CHAMPION, WEIGHTS_TAG
from tasks.tracking import HOME_TAG, RUN_KEY_TAG, connect
from tasks.verify import Finding, verify
from tasks.verify.residue import SHARED_MEMORY
from training.attempts import read_attempts
from training.errors import TransientError
from training.learner import Learner
from training.paths import Home, RunPaths
from training.records import Release

pytestmark = pytest.mark.usefixtures("prefect_harness")

EVERY_STEPS = 4
LAST_STEP, EPOCH_END = 42, 21  # 1,328 rows to learn from, 64 a step, two epochs


class Subject:
    """A home with a finished run, `paths`, and another version of its model; it can be damaged and made whole again."""

    def __init__(self, root: Path, backup: Path):
        self.home, self.backup = Home(root), backup
        self.release, self.paths = made(self.home, fails_at=14)
        made(self.home, training={"epochs": 1, "learning_rate": 1e-5}, gate={"floor": 0.0})
        self.client: Any = connect(None, self.home)
        shutil.copytree(root, backup)

    def restore(self) -> None:
        """In place: MLflow knows its files by their absolute paths, and keeps its database open."""
        for entry in self.home.root.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
        shutil.copytree(
            self.backup, self.home.root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("mlflow.db*")
        )
        with (
            closing(sqlite3.connect(self.backup / "mlflow.db")) as before,
            closing(sqlite3.connect(self.home.root / "mlflow.db")) as now,
        ):
            before.backup(now)

    def broken(self) -> set[str]:
        """The invariants that do not hold."""
        return {one.invariant for one in self.look() if one.ok is False}

    def look(self, **more: Any) -> tuple[Finding, ...]:
        return verify(self.paths, self.home, **more)


def made(home: Home, fails_at: int | None = None, **sections: dict[str, Any]) -> tuple[Release, RunPaths]:
    """A finished run in `home`; its first attempt fails before step `fails_at`."""
    settings: dict[str, Any] = {
        "training": {"epochs": 2},
        "scaling": {"num_workers": 0},
        "tracking": {"system_metrics": False},
        "gate": {"floor": 0.5},
        "checkpoint": {"every_steps": EVERY_STEPS},
    }
    for name, section in sections.items():
        settings[name] = settings.get(name, {}) | section
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVERGREEN_HOME", str(home.root))
        if fails_at is not None:
            fail_once(patch, fails_at)
        release = retrain("digits", SettingsForm.model_validate(settings))
    return release, home.run("digits", release.run_key)


def fail_once(patch: pytest.MonkeyPatch, step: int) -> None:
    """Lose the worker before optimizer step `step`, once, after a second that its signs of life take note of."""
    whole, failed = Learner.step, []

    def step_or_fail(self: Learner, batch: Any, epoch: int, number: int) -> Any:
        if number == step - 1 and not failed:
            time.sleep(1.1)
        if number == step and not failed:
            failed.append(step)
            raise TransientError("a lost worker")
        return whole(self, batch, epoch, number)

    patch.setattr(Learner, "step", step_or_fail)


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory, prefect_harness: None) -> Subject:
    return Subject(tmp_path_factory.mktemp("subject"), tmp_path_factory.mktemp("backup") / "home")


@pytest.fixture
def sound(subject: Subject) -> Iterator[Subject]:
    """The subject, whole before and after."""
    yield subject
    subject.restore()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, prefect_harness: None) -> RunPaths:
    """The same run in another home, where nothing fails."""
    return made(Home(tmp_path_factory.mktemp("undisturbed")))[1]


def told(findings: tuple[Finding, ...], name: str) -> Finding:
    return next(one for one in findings if one.name == name)


def test_a_run_that_recovered_keeps_every_promise(sound: Subject, undisturbed: RunPaths) -> None:
    findings = sound.look(against=undisturbed, recovery_bound_s=60)
    assert [one for one in findings if one.ok is not True] == []
    assert {one.invariant for one in findings} == {f"I{number}" for number in range(1, 11)}
    first, second = read_attempts(sound.paths)
    assert (first.first_step, second.number) == (0, 2)
    assert told(findings, "steps computed twice").detail.startswith(
        f"steps again: 2.1: {second.reached - second.first_step}; {EVERY_STEPS} lie between two checkpoints"
    )


def test_looking_changes_nothing(sound: Subject) -> None:
    def everything() -> dict[Path, tuple[int, int]]:
        files = [file for file in sound.home.root.rglob("*") if file.is_file()]
        return {file: (file.stat().st_size, file.stat().st_mtime_ns) for file in files}

    before = everything()
    sound.look()
    assert everything() == before


# What is done to the run.


def flip(file: Path, place: int = -1) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    record = json.loads(file.read_text())
    change(record)
    file.write_text(json.dumps(record))


def edit_lines(file: Path, change: Callable[[list[str]], object]) -> None:
    lines = file.read_text().splitlines(keepends=True)
    change(lines)
    file.write_text("".join(lines))


def trained(subject: Subject) -> Path:
    return subject.paths.model / "trained.json"


def checkpoint(subject: Subject) -> Path:
    return sorted(subject.paths.checkpoints.glob("step-*"))[0]


def part(subject: Subject, name: str = "train/part-00000.parquet") -> Path:
    return next(subject.home.datasets.glob(f"digits/*/{name}"))


def weights_flipped(subject: Subject) -> None:
    flip(subject.paths.model / "weights.safetensors")


def weights_gone(subject: Subject) -> None:
    (subject.paths.model / "weights.safetensors").unlink()


def weights_and_their_record_replaced(subject: Subject) -> None:
    other = next(run for run in subject.home.runs("digits").iterdir() if run != subject.paths.root)
    shutil.copy(other / "model" / "weights.safetensors", subject.paths.model)
    digest = json.loads((other / "model" / "trained.json").read_text())["weights_digest"]
    edit(trained(subject), lambda record: record.update(weights_digest=digest))


def version_names_other_weights(subject: Subject) -> None:
    subject.client.set_model_version_tag("digits", "1", WEIGHTS_TAG, "0" * 64)


def version_twice(subject: Subject) -> None:
    one = subject.client.get_model_version("digits", "1")
    subject.client.create_model_version("digits", source=one.source, run_id=one.run_id, tags=one.tags)


def version_gone(subject: Subject) -> None:
    subject.client.delete_model_version("digits", "1")


def champion_moved_by_hand(subject: Subject) -> None:
    subject.client.set_registered_model_alias("digits", CHAMPION, "2")


def decisions_gone(subject: Subject) -> None:
    (subject.home.root / "decisions" / "digits.jsonl").unlink()


def registered_model_swapped(subject: Subject) -> None:
    places = [
        Path(subject.client.get_model_version_download_uri("digits", number).removeprefix("file://"))
        for number in ("1", "2")
    ]
    shutil.rmtree(places[0])
    shutil.copytree(places[1], places[0])


def point_twice(subject: Subject) -> None:
    edit_lines(subject.paths.metrics, lambda lines: lines.append(lines[3]))


def point_gone(subject: Subject) -> None:
    edit_lines(subject.paths.metrics, lambda lines: lines.pop(3))


def value_changed(subject: Subject) -> None:
    def change(lines: list[str]) -> None:
        point = json.loads(lines[3])
        point["values"]["train/loss"] += 1e-9
        lines[3] = json.dumps(point) + "\n"

    edit_lines(subject.paths.metrics, change)


def point_twice_in_mlflow(subject: Subject) -> None:
    run_id = subject.release.mlflow_run_id
    point = subject.client.get_metric_history(run_id, "train/loss")[0]
    subject.client.log_metric(run_id, "train/loss", point.value, point.timestamp + 1, point.step)


def point_between_in_mlflow(subject: Subject) -> None:
    subject.client.log_metric(subject.release.mlflow_run_id, "train/loss", 1.0, step=1)


def point_gone_in_mlflow(subject: Subject) -> None:
    with closing(sqlite3.connect(subject.home.root / "mlflow.db")) as store, store:
        store.execute("delete from metrics where key = 'validation/loss' and step = ?", (EPOCH_END,))


def final_number_changed(subject: Subject) -> None:
    with closing(sqlite3.connect(subject.home.root / "mlflow.db")) as store, store:
        store.execute("update metrics set value = value / 2 where key = 'macro_f1'")


def row_skipped(subject: Subject) -> None:
    edit(trained(subject), lambda record: record["history"][1].update(rows=1327))


def row_used_for_another(subject: Subject) -> None:
    checksum = json.loads(trained(subject).read_text())["history"][0]["checksum"]
    edit(trained(subject), lambda record: record["history"][0].update(checksum=checksum + 1))


def steps_done_again(subject: Subject) -> None:
    def change(lines: list[str]) -> None:
        attempt = json.loads(lines[1])
        lines[1] = json.dumps(attempt | {"reached": attempt["first_step"] + 2 * EVERY_STEPS + 1}) + "\n"

    edit_lines(subject.paths.attempts, change)


def first_attempt_forgotten(subject: Subject) -> None:
    edit_lines(subject.paths.attempts, lambda lines: lines.pop(0))


def attempts_out_of_order(subject: Subject) -> None:
    edit_lines(subject.paths.attempts, lambda lines: lines.append(lines[1]))


def fence_set_back(subject: Subject) -> None:
    subject.paths.fence.write_text("1.1")


def checkpoint_flipped(subject: Subject) -> None:
    flip(checkpoint(subject) / "state.pt", 1000)


def checkpoint_without_manifest(subject: Subject) -> None:
    (checkpoint(subject) / "MANIFEST.json").unlink()


def checkpoint_of_another_step(subject: Subject) -> None:
    checkpoint(subject).rename(subject.paths.checkpoints / "step-000000001")


def part_flipped(subject: Subject) -> None:
    flip(part(subject), 100)


def part_too_many(subject: Subject) -> None:
    shutil.copy(part(subject), part(subject).with_name("part-00009.parquet"))


def columns_flipped(subject: Subject) -> None:
    flip(part(subject, ".columns-train/images.npy"))


def recipe_changed(subject: Subject) -> None:
    file = subject.paths.recipe / "digits.py"
    file.write_text(file.read_text() + "# changed\n")


def temporary_file_in_run(subject: Subject) -> None:
    (subject.paths.root / ".release.json.0a1b2c3d.tmp").touch()


def half_removed_checkpoint(subject: Subject) -> None:
    (subject.paths.checkpoints / ".step-000000004.removed").mkdir()


def temporary_folder_in_datasets(subject: Subject) -> None:
    (part(subject).parents[1] / ".columns-test.0a1b2c3d.tmp").mkdir()


def temporary_file_in_artifacts(subject: Subject) -> None:
    folder = subject.home.mlflow_artifacts / "digits" / subject.release.mlflow_run_id / "artifacts"
    (folder / ".report.html.tmp").touch()


def record_cut_short(subject: Subject) -> None:
    file = next(subject.paths.evaluation.glob("*/evaluation.json"))
    file.write_text(file.read_text()[:-20])


def attempt_line_cut_short(subject: Subject) -> None:
    edit_lines(subject.paths.failures, lambda lines: lines.append('{"number": 2, "at": 17'))


def asked_to_stop(subject: Subject) -> None:
    subject.paths.stop.write_text("SIGTERM")


def left_running(subject: Subject) -> None:
    subject.client.update_run(subject.release.mlflow_run_id, status="RUNNING")


def another_left_running(subject: Subject) -> None:
    ours = subject.client.get_run(subject.release.mlflow_run_id)
    tags = {HOME_TAG: ours.data.tags[HOME_TAG], RUN_KEY_TAG: "f" * 64, "evergreen.recipe": "other"}
    subject.client.create_run(ours.info.experiment_id, tags=tags)


def second_mlflow_run(subject: Subject) -> None:
    ours = subject.client.get_run(subject.release.mlflow_run_id)
    tags = {RUN_KEY_TAG: ours.data.tags[RUN_KEY_TAG]}
    made = subject.client.create_run(ours.info.experiment_id, tags=tags)
    subject.client.set_terminated(made.info.run_id)


def release_of_other_weights(subject: Subject) -> None:
    edit(subject.paths.release, lambda record: record.update(selected_epoch=1))


def verdict_turned(subject: Subject) -> None:
    edit(subject.paths.release, lambda record: record["verdict"].update(promote=False))


def verdict_turned_in_mlflow(subject: Subject) -> None:
    verdict = subject.release.verdict.model_dump(mode="json") | {"promote": False}
    subject.client.log_dict(subject.release.mlflow_run_id, verdict, "verdict.json")


def accuracy_embellished(subject: Subject) -> None:
    file = next(subject.paths.evaluation.glob("*/predictions.parquet"))
    table = pq.read_table(file)
    place = table.column_names.index("candidate")
    pq.write_table(table.set_column(place, "candidate", table["label"]), file)


def ingredient_changed(subject: Subject) -> None:
    edit(subject.paths.ingredients, lambda record: record["ingredients"]["versions"].update(numpy="1.0.0"))


def page_gone(subject: Subject) -> None:
    subject.paths.report.unlink()


DAMAGE: dict[Callable[[Subject], None], set[str]] = {
    weights_flipped: {"I1"},
    weights_gone: {"I1"},
    weights_and_their_record_replaced: {"I1", "I2", "I10"},
    version_names_other_weights: {"I1", "I2"},
    version_twice: {"I2"},
    version_gone: {"I2"},
    champion_moved_by_hand: {"I2"},
    decisions_gone: {"I2"},
    registered_model_swapped: {"I2"},
    point_twice: {"I3"},
    point_gone: {"I3"},
    value_changed: {"I3"},
    point_twice_in_mlflow: {"I3"},
    point_between_in_mlflow: {"I3"},
    point_gone_in_mlflow: {"I3"},
    final_number_changed: {"I3"},
    row_skipped: {"I4"},
    row_used_for_another: {"I4"},
    steps_done_again: {"I5"},
    first_attempt_forgotten: {"I5"},
    attempts_out_of_order: {"I5"},
    fence_set_back: {"I5"},
    checkpoint_flipped: {"I7"},
    checkpoint_without_manifest: {"I7"},
    checkpoint_of_another_step: {"I7"},
    part_flipped: {"I7"},
    part_too_many: {"I7"},
    columns_flipped: {"I7"},
    recipe_changed: {"I7"},
    temporary_file_in_run: {"I7"},
    half_removed_checkpoint: {"I7"},
    temporary_folder_in_datasets: {"I7"},
    temporary_file_in_artifacts: {"I7"},
    record_cut_short: {"I7"},
    attempt_line_cut_short: {"I7"},
    asked_to_stop: {"I8"},
    left_running: {"I9"},
    another_left_running: {"I9"},
    second_mlflow_run: {"I9"},
    release_of_other_weights: {"I10"},
    verdict_turned: {"I10"},
    verdict_turned_in_mlflow: {"I10"},
    accuracy_embellished: {"I10"},
    ingredient_changed: {"I10"},
    page_gone: {"I10"},
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damage_is_found_where_it_belongs(sound: Subject, damage: Callable[[Subject], None]) -> None:
    damage(sound)
    assert sound.broken() == DAMAGE[damage], [one for one in sound.look() if not one.ok]


def test_a_rollback_on_record_is_no_damage(sound: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.registry import PREVIOUS, roll_back

    sound.client.set_registered_model_alias("digits", PREVIOUS, "2")
    roll_back(sound.client, sound.home, "digits", "by test")
    findings = sound.look()
    assert told(findings, "alias").detail == "verdict promote; version 1 is previous"
    assert {one.invariant for one in findings if one.ok is False} == set()


def test_a_recovery_that_took_too_long(sound: Subject) -> None:
    assert {one.invariant for one in sound.look(recovery_bound_s=0.001) if one.ok is False} == {"I6"}
    found = told(sound.look(), "recovery")
    assert found.ok is None
    assert "s after attempt 1; --recovery-bound" in found.detail


# What is left on the machine.


def test_a_held_lock(sound: Subject) -> None:
    with (sound.home.locks / "registry-digits.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert sound.broken() == {"I8"}
    with (sound.home.locks / "run-other.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = told(sound.look(), "locks")
    assert (found.ok, found.detail) == (None, "other runs of this home are at work: run-other.lock")


def test_a_run_that_goes_on_is_not_left_running(sound: Subject) -> None:
    sound.paths.release.unlink()
    left_running(sound)
    assert {"I9", "I10"} <= sound.broken()
    with (sound.home.locks / "run-digits.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "I9" not in sound.broken()


def test_a_helper_process(sound: Subject) -> None:
    program = "import time; time.sleep(60)"
    command = (
        f"{sys.executable} -c '{program}' prefect.server.api.server:create_app >/dev/null 2>&1 & echo $!"
    )
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


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="no /dev/shm here")
def test_shared_memory(sound: Subject) -> None:
    file = SHARED_MEMORY / f"torch_{os.getpid()}_evergreen_test"
    file.write_bytes(b"left")
    try:
        assert sound.broken() == set()  # written after the run was over
        during = sound.paths.release.stat().st_mtime - 0.1
        os.utime(file, (during, during))
        assert sound.broken() == {"I8"}
        with file.open():
            assert sound.broken() == set()
    finally:
        file.unlink()


# Prefect's states.


@contextmanager
def harness_database(target: Path) -> Iterator[sqlite3.Connection]:
    """A copy of the test server's database where a home keeps that of its own servers."""
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL

    source = str(PREFECT_API_DATABASE_CONNECTION_URL.value()).partition("///")[2]
    target.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(source)) as theirs, closing(sqlite3.connect(target)) as ours:
        theirs.backup(ours)
        yield ours


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
        # The process that started it, this one, is older than the flow run.
        deadline = time.monotonic() + 30
        while sound.broken() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert sound.broken() == set()
        alive.communicate(b"\n")


def test_a_flow_run_left_running_in_a_configured_server(sound: Subject) -> None:
    from prefect.client.orchestration import get_client
    from prefect.states import Running

    from flows.retrain import retrain as flow

    with get_client(sync_client=True) as client:
        left = client.create_flow_run(flow, parameters={"recipe": "digits"}, state=Running())
        try:
            found = told(sound.look(), "Prefect, configured server")
            assert found.ok is None
            assert str(left.id) in found.detail
            gone = subprocess.run(
                [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True
            )
            client.update_flow_run(left.id, infrastructure_pid=f"here:{int(gone.stdout)}")
            assert sound.broken() == {"I9"}
            client.update_flow_run(left.id, infrastructure_pid=f"here:{os.getpid()}")
            assert sound.broken() == set()
        finally:
            client.delete_flow_run(left.id)


# Against another run.


def test_another_run_of_other_ingredients_can_not_be_compared(sound: Subject) -> None:
    other = next(run for run in sound.home.runs("digits").iterdir() if run != sound.paths.root)
    findings = sound.look(against=RunPaths(other))
    for name in ("weights of the other run", "metrics of the other run"):
        assert told(findings, name).ok is None
        assert "settings.training.epochs: 1 -> 2" in told(findings, name).detail


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
    assert {one.invariant for one in sound.look(against=copy) if one.ok is False} == broken


def test_another_run_under_other_conditions(sound: Subject, undisturbed: RunPaths, tmp_path: Path) -> None:
    copy = RunPaths(tmp_path / "runs" / "digits" / undisturbed.root.name)
    shutil.copytree(undisturbed.root, copy.root)
    flip(copy.model / "weights.safetensors")
    for file in copy.checkpoints.glob("*/MANIFEST.json"):
        edit(file, lambda manifest: manifest["contract"].update(threads="7"))
    found = told(sound.look(against=copy), "weights of the other run")
    assert found.ok is None
    assert '"threads":"7"' in found.detail
