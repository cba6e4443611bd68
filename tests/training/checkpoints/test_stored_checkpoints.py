"""Checkpoints in an object store: a process on another machine resumes from them; damage costs one checkpoint."""

from pathlib import Path

import pytest
from checkpoints import KEY, at, newest, save

from training.attempts.fence import Fence, SupersededError
from training.attempts.metrics import MetricsFile
from training.checkpoints.stored_checkpoints import StoredCheckpointLog, download_model
from training.checkpoints.stored_run import StoredFile, StoredRun
from training.errors import TransientError
from training.settings.schema import CheckpointSettings
from training.storage.objects.base import ObjectStore, open_store
from training.storage.paths import RunPaths

PREFIX = "runs/digits/0123456789abcdef"


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(f"file://{tmp_path}/store")


def opened(
    store: ObjectStore, folder: Path, attempt: int | None = None, **settings: int
) -> StoredCheckpointLog:
    """Open the log as a process on a machine with an empty disk; `attempt` makes it the first worker of one."""
    folder = folder / "0123456789abcdef"
    fence = Fence(folder / "fence", attempt or 0, 1, "driver")
    run = StoredRun(store, PREFIX, fence)
    if attempt is not None:
        assert StoredRun(store, PREFIX).begin("driver", at_least=1) == attempt
        run.enter()
    folder.mkdir(parents=True, exist_ok=True)
    metrics = MetricsFile(folder / "metrics.jsonl")
    return StoredCheckpointLog(
        folder / "checkpoints", CheckpointSettings(**settings), KEY, metrics=metrics, stored=run
    )


def stored_steps(store: ObjectStore) -> list[int]:
    return [checkpoint.step for checkpoint in StoredRun(store, PREFIX).state().checkpoints]


def test_another_machine_resumes_with_state_and_points(store: ObjectStore, tmp_path: Path) -> None:
    here = opened(store, tmp_path / "here", attempt=1)
    assert here.metrics is not None
    for step in (1, 2, 3):
        here.metrics.append(step, 1, {"train/loss": 1.0 / step})
        save(here, step)
    here.metrics.append(4, 1, {"train/loss": 0.1})  # after the checkpoint: computed again
    there = opened(store, tmp_path / "there")
    assert newest(there) == 3
    assert there.metrics is not None
    assert [point.step for point in there.metrics.read()] == [1, 2, 3]


def test_the_settings_say_which_checkpoints_are_kept(store: ObjectStore, tmp_path: Path) -> None:
    log = opened(store, tmp_path / "here", attempt=1, keep_newest=2, keep_best=1)
    for step, score in ((10, 0.5), (20, 0.1), (30, 0.4), (40, 0.3)):
        save(log, step, score=score)
    assert stored_steps(store) == [20, 30, 40]
    kept = {key.split("/")[-2] for key in store.keys(f"{PREFIX}/files")}
    assert kept == {"step-000000020", "step-000000030", "step-000000040"}
    there = opened(store, tmp_path / "there")
    assert there.load_at(20)["step"] == 20


def test_an_earlier_checkpoint_is_read_without_its_points(store: ObjectStore, tmp_path: Path) -> None:
    """A training that ends reads the checkpoint of its best epoch, and keeps the points of the later epochs."""
    here = opened(store, tmp_path / "here", attempt=1, keep_newest=2, keep_best=1)
    assert here.metrics is not None
    for step, score in ((1, 0.1), (2, 0.5), (3, 0.4)):
        here.metrics.append(step, 1, {"train/loss": 1.0 / step})
        save(here, step, score=score)
    there = opened(store, tmp_path / "there")
    assert newest(there) == 3
    assert there.metrics is not None
    there.metrics.append(4, 1, {"train/loss": 0.1})
    assert there.load_step(1)["step"] == 1
    assert [point.step for point in there.metrics.read()] == [1, 2, 3, 4]


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(
    store: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here = opened(store, tmp_path / "here", attempt=1)
    save(here, 1, 2)
    (key,) = [key for key in store.keys(f"{PREFIX}/files") if "step-000000002/state.pt" in key]
    (tmp_path / "bad").write_bytes(store.get(key)[:-1])
    store.put_file(key, tmp_path / "bad")
    there = opened(store, tmp_path / "there", attempt=2)
    assert newest(there) == 1
    assert "step-000000002/state.pt: not the bytes that were uploaded" in caplog.text
    save(there, 2, 3)
    assert stored_steps(store) == [2, 3]
    assert newest(opened(store, tmp_path / "third")) == 3


def test_no_checkpoint_is_no_error(store: ObjectStore, tmp_path: Path) -> None:
    assert newest(opened(store, tmp_path / "here")) is None


def test_a_superseded_worker_s_checkpoint_does_not_count(store: ObjectStore, tmp_path: Path) -> None:
    old = opened(store, tmp_path / "old", attempt=1)
    save(old, 1)
    new = opened(store, tmp_path / "new", attempt=2)
    old.save(at(2), {"step": 2}, None)
    with pytest.raises(SupersededError):
        old.wait()
    assert newest(new) == 1


def test_the_finished_training_reaches_another_machine(store: ObjectStore, tmp_path: Path) -> None:
    log = opened(store, tmp_path / "here", attempt=1)
    here, there = RunPaths(log.folder.parent), RunPaths(tmp_path / "there")
    assert not download_model(StoredRun(store, PREFIX), there)
    here.model.mkdir()
    (here.model / "weights.safetensors").write_bytes(b"weights")
    here.metrics.write_text("points\n")
    log.publish_model(here)
    assert download_model(StoredRun(store, PREFIX), there)
    assert (there.model / "weights.safetensors").read_bytes() == b"weights"
    assert there.metrics.read_text() == "points\n"
    assert there.fence.read_text() == "1.1 driver"
    there.fence.write_text("2.0 other")  # began after the download
    assert download_model(StoredRun(store, PREFIX), there)
    assert there.fence.read_text() == "2.0 other"


def test_a_checkpoint_that_is_found_damaged_at_the_end_is_computed_again(
    store: ObjectStore, tmp_path: Path
) -> None:
    save(opened(store, tmp_path / "here", attempt=1, keep_newest=9), 1, 2, 3)
    (key,) = [key for key in store.keys(f"{PREFIX}/files") if "step-000000002/state.pt" in key]
    store.delete([key])
    there = opened(store, tmp_path / "there", attempt=2, keep_newest=9)
    with pytest.raises(TransientError, match=r"step-000000002/state\.pt: missing"):
        there.load_step(2)
    assert stored_steps(store) == [1]
    assert newest(opened(store, tmp_path / "third")) == 1


def test_points_that_another_machine_wrote_replace_older_points(store: ObjectStore, tmp_path: Path) -> None:
    log = opened(store, tmp_path / "here", attempt=1)
    here, there = RunPaths(log.folder.parent), RunPaths(tmp_path / "there")
    here.model.mkdir()
    here.metrics.write_text("points\nmore points\n")
    here.attempts.write_text("theirs\n")
    log.publish_model(here)
    there.root.mkdir()
    there.metrics.write_text("points\n")
    there.attempts.write_text("ours\n")
    assert download_model(StoredRun(store, PREFIX), there)
    assert there.metrics.read_text() == "points\nmore points\n"
    assert there.attempts.read_text() == "ours\n"


@pytest.mark.parametrize("name", ["../x", "/etc/x", "model/../x", "model//etc/x", "a/b/c", "model/.."])
def test_a_name_that_leads_out_of_the_run_s_folder_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        StoredFile(name=name, key="runs/digits/x/files/1", sha256="")


@pytest.mark.parametrize("key", ["other/x", "runs/../x", "/etc/x"])
def test_a_key_outside_the_runs_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="key"):
        StoredFile(name="model/x", key=key, sha256="")


def test_a_checkpoint_that_is_damaged_on_this_disk_alone_is_downloaded_again(
    store: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here = opened(store, tmp_path / "here", attempt=1, keep_newest=9)
    save(here, 1, 2, 3)
    state = here.path_at(1) / "state.pt"
    state.write_bytes(state.read_bytes()[:-1])
    assert here.load_step(1)["step"] == 1
    assert "not the bytes that its manifest lists. It is downloaded again" in caplog.text
    assert stored_steps(store) == [1, 2, 3]
