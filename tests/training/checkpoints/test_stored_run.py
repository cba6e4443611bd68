"""The log of a run in an object store: commits of superseded attempts are refused, lost answers lose nothing."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from training.attempts.fence import Fence, RivalDriverError, SupersededError
from training.checkpoints.stored_run import RunState, StoredCheckpoint, StoredRun
from training.errors import DataError, TransientError
from training.storage.objects.base import ObjectStore, open_store
from training.storage.record_files import record_text

PREFIX = "runs/digits/0123456789abcdef"

_KILLED = """
import os, sys
from pathlib import Path
from training.storage.objects.base import open_store
open_store(sys.argv[1]).put_file(sys.argv[2], Path(sys.argv[3]), lambda _: os.kill(os.getpid(), 9))
"""


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(f"file://{tmp_path}/store")


def run(store: ObjectStore, attempt: int = 0, group: int = 1, driver: str = "here/1/a") -> StoredRun:
    """The run as a process of this attempt and group of workers sees it."""
    return StoredRun(store, PREFIX, Fence(Path("unused"), attempt, group, driver))


def begun(store: ObjectStore, driver: str = "here/1/a") -> StoredRun:
    """The run in the first worker of a new attempt."""
    number = StoredRun(store, PREFIX).begin(driver, at_least=1)
    entered = run(store, number, driver=driver)
    entered.enter()
    return entered


def with_step(step: int) -> Callable[[RunState], RunState]:
    made = StoredCheckpoint(step=step, score=None, files=())
    return lambda state: state.model_copy(update={"checkpoints": (*state.checkpoints, made)})


def steps(store: ObjectStore) -> list[int]:
    return [checkpoint.step for checkpoint in StoredRun(store, PREFIX).state().checkpoints]


def test_attempts_are_numbered_upwards(store: ObjectStore) -> None:
    assert StoredRun(store, PREFIX).state() == RunState()
    assert StoredRun(store, PREFIX).begin("here", at_least=3) == 3
    assert StoredRun(store, PREFIX).begin("here", at_least=1) == 4
    assert len(store.keys(f"{PREFIX}/log")) == 2


def test_commits_add_up(store: ObjectStore) -> None:
    worker = begun(store)
    worker.commit(with_step(1))
    before, after = worker.commit(with_step(2))
    assert (
        [checkpoint.step for checkpoint in before.checkpoints],
        [checkpoint.step for checkpoint in after.checkpoints],
    ) == (
        [1],
        [1, 2],
    )
    assert steps(store) == [1, 2]


def test_an_attempt_that_a_newer_one_superseded_can_t_commit(store: ObjectStore) -> None:
    old = begun(store)
    old.commit(with_step(1))
    new = begun(store)
    with pytest.raises(SupersededError, match=r"attempt 1\.1 .* superseded by attempt 2\.1"):
        old.commit(with_step(2))
    with pytest.raises(SupersededError):
        old.enter()
    new.commit(with_step(3))
    assert steps(store) == [1, 3]


def test_a_group_of_workers_that_ray_replaced_can_t_commit(store: ObjectStore) -> None:
    first = begun(store)
    second = run(store, 1, group=2)
    second.enter()
    with pytest.raises(SupersededError):
        first.commit(with_step(1))
    with pytest.raises(SupersededError):
        run(store, 1, group=2).enter()  # another worker that takes itself for the first
    second.commit(with_step(2))
    assert steps(store) == [2]


def test_an_attempt_that_began_between_the_check_and_the_write_wins(store: ObjectStore) -> None:
    """The pause that a file of a fence can't guard against: the fence is checked, then a newer attempt begins."""
    old = begun(store)

    def slow(state: RunState) -> RunState:
        if state.attempt == 1:
            StoredRun(store, PREFIX).begin("there", at_least=1)
        return with_step(1)(state)

    with pytest.raises(SupersededError):
        old.commit(slow)
    assert steps(store) == []


def test_of_commits_at_the_same_time_none_is_lost(store: ObjectStore) -> None:
    begun(store)
    barrier = threading.Barrier(8)

    def commit(step: int) -> None:
        worker = run(store, 1)
        barrier.wait()
        worker.commit(with_step(step))

    threads = [threading.Thread(target=commit, args=(step,)) for step in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(steps(store)) == list(range(8))


def test_another_driver_is_a_rival_and_a_driver_before_is_none(store: ObjectStore) -> None:
    mine = begun(store, "here/1/a")
    assert mine.fence is not None
    mine.check_driver(mine.fence)
    theirs = begun(store, "there/2/b")
    assert theirs.fence is not None
    theirs.check_driver(theirs.fence)
    with pytest.raises(RivalDriverError, match="there/2/b"):
        mine.check_driver(mine.fence)


class Flaky:
    """A store that loses the answers to the first `lost` conditional writes, after or before they were done."""

    def __init__(self, store: ObjectStore, lost: int, done: bool):
        self.store, self.lost, self.done = store, lost, done

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)

    def put_new(self, key: str, data: bytes) -> bool:
        if not self.lost:
            return self.store.put_new(key, data)
        self.lost -= 1
        if self.done:
            self.store.put_new(key, data)
        raise TransientError("the answer was lost")


@pytest.mark.parametrize("done", [True, False])
def test_a_lost_answer_neither_loses_nor_repeats_a_commit(store: ObjectStore, done: bool) -> None:
    worker = begun(store)
    worker.store = Flaky(store, 2, done)  # type: ignore[assignment]
    worker.commit(with_step(1))
    worker.commit(with_step(2))
    assert steps(store) == [1, 2]
    assert len(store.keys(f"{PREFIX}/log")) == 4


def test_a_store_that_stays_away_is_an_error_and_changes_nothing(store: ObjectStore) -> None:
    worker = begun(store)
    worker.store = Flaky(store, 100, done=False)  # type: ignore[assignment]
    with pytest.raises(TransientError, match="lost"):
        worker.commit(with_step(1))
    assert steps(store) == []


def test_files_return_whole_or_are_an_error(store: ObjectStore, tmp_path: Path) -> None:
    worker = begun(store)
    (tmp_path / "a").write_bytes(b"content")
    stored = worker.upload({"step/state": tmp_path / "a"})
    worker.download(stored, {"step/state": tmp_path / "there" / "a"})
    assert (tmp_path / "there" / "a").read_bytes() == b"content"
    (tmp_path / "b").write_bytes(b"c0ntent")
    store.put_file(stored[0].key, tmp_path / "b")
    with pytest.raises(DataError, match="not the bytes that were uploaded"):
        worker.download(stored, {"step/state": tmp_path / "new"})
    worker.delete(stored)
    with pytest.raises(DataError, match="missing"):
        worker.download(stored, {"step/state": tmp_path / "new"})
    assert not (tmp_path / "new").exists()


def test_what_a_killed_attempt_uploaded_is_deleted_and_what_counts_is_kept(
    store: ObjectStore, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"content")
    killed = begun(store)
    files = killed.upload({"kept": tmp_path / "a"})
    killed.commit(lambda state: state.model_copy(update={"model": files}))
    killed.upload({"left": tmp_path / "a"})
    assert len(store.keys(f"{PREFIX}/files")) == 2
    begun(store)
    assert store.keys(f"{PREFIX}/files") == [files[0].key]


def kill_during_upload(store: ObjectStore, key: str, file: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED, store.url, key, str(file)], check=False)
    assert done.returncode == -signal.SIGKILL


def test_the_part_of_an_object_whose_upload_was_killed_goes_with_its_attempt_or_with_the_run(
    store: ObjectStore, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"content")
    first = begun(store)
    kill_during_upload(store, f"{first.folder_of('1.1')}/step/a", tmp_path / "a")
    assert StoredRun(store, PREFIX).unused(first.state()) == []  # attempt 1 may still be writing it
    (part,) = (tmp_path / "store").rglob(".a.*.tmp")
    second = begun(store)
    assert not part.exists()
    kill_during_upload(store, f"{second.folder_of('2.1')}/step/a", tmp_path / "a")
    kill_during_upload(store, f"{PREFIX}/log/000000009.json", tmp_path / "a")
    assert second.remove(second.state(), "here/2/a")
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


def test_a_new_entry_whose_part_is_removed_meanwhile_can_be_tried_again(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another home removes the run while this one begins it again."""
    link, times = os.link, []

    def removed_first(source: Path, target: Path) -> None:
        times.append(target)
        if len(times) == 1:
            source.unlink()
        link(source, target)

    monkeypatch.setattr(os, "link", removed_first)
    assert StoredRun(store, PREFIX).begin("here/1/a", at_least=1) == 1
    assert len(times) == 2


def test_an_upload_whose_part_a_newer_attempt_removes_is_a_transient_error(
    store: ObjectStore, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"content")
    first = begun(store)
    with pytest.raises(TransientError, match="was not written, because another process"):
        first.upload({"a": tmp_path / "a"}, lambda _: begun(store))
    with pytest.raises(FileNotFoundError):
        first.upload({"a": tmp_path / "none"})


def damaged(store: ObjectStore, number: int, folder: Path) -> None:
    key = f"{PREFIX}/log/{number:09d}.json"
    (folder / "bad").write_bytes(store.get(key).replace(b'"attempt": ', b'"attempt": 7'))
    store.put_file(key, folder / "bad")


def test_the_next_attempt_continues_from_the_entry_before_a_damaged_one(
    store: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = begun(store)
    worker.commit(with_step(1))
    worker.commit(with_step(2))
    damaged(store, 4, tmp_path)
    assert steps(store) == [1]
    assert f"{store.url}/{PREFIX}/log/000000004.json: damaged (its checksum does not match" in caplog.text
    assert "The run continues from the entry before it" in caplog.text
    following = begun(store)
    following.commit(with_step(3))
    assert steps(store) == [1, 3]
    with pytest.raises(SupersededError):
        worker.commit(with_step(4))


def test_no_worker_commits_after_a_damaged_entry_which_may_tell_of_a_newer_attempt(
    store: ObjectStore, tmp_path: Path
) -> None:
    worker = begun(store)
    StoredRun(store, PREFIX).begin("there", at_least=1)
    damaged(store, 3, tmp_path)
    with pytest.raises(
        TransientError, match=r"log/000000003\.json: damaged .*nothing is committed\. Run the same"
    ):
        worker.commit(with_step(1))
    with pytest.raises(TransientError):
        run(store, 1, group=2).enter()
    assert worker.fence is not None
    worker.check_driver(worker.fence)
    assert len(store.keys(f"{PREFIX}/log")) == 3
    begun(store).commit(with_step(2))
    assert steps(store) == [2]


def test_a_log_of_damaged_entries_names_the_remedy(store: ObjectStore, tmp_path: Path) -> None:
    begun(store)
    for number in (1, 2):
        damaged(store, number, tmp_path)
    with pytest.raises(DataError, match=r"log/000000002\.json: damaged .*Delete .* and run again"):
        StoredRun(store, PREFIX).state()


def test_an_entry_of_another_version_is_not_damage(store: ObjectStore) -> None:
    class Later(RunState):
        """The entry of a version that records more."""

        more: int = 1

    begun(store)
    name = "000000003.json"
    store.put_new(f"{PREFIX}/log/{name}", record_text(name, Later(number=3), PREFIX).encode())
    with pytest.raises(
        DataError, match=rf"log/{name}: not readable .*the version of Evergreen that wrote it"
    ):
        StoredRun(store, PREFIX).state()


def test_foreign_objects_in_the_log_do_not_count(store: ObjectStore) -> None:
    worker = begun(store)
    store.put_new(f"{PREFIX}/log/notes.txt", b"")
    worker.commit(with_step(1))
    assert steps(store) == [1]
