"""A damaged checkpoint is skipped with a warning and saved again, and code in a checkpoint is never executed."""

import errno
import json
import logging
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoints import at, folder, newest, opened, save, steps

from training.attempts.fence import SupersededError
from training.checkpoints import checkpoint_log
from training.checkpoints.checkpoint_files import MANIFEST, STATE, read_manifest
from training.checkpoints.checkpoint_log import CheckpointLog
from training.errors import TransientError
from training.storage.files import digest_file
from training.storage.record_files import record_text


def truncated(path: Path) -> None:
    (path / STATE).write_bytes((path / STATE).read_bytes()[:-1])


def flipped(path: Path) -> None:
    content = bytearray((path / STATE).read_bytes())
    content[len(content) // 2] ^= 1
    (path / STATE).write_bytes(content)


def emptied(path: Path) -> None:
    (path / STATE).write_bytes(b"")


def stateless(path: Path) -> None:
    (path / STATE).unlink()


def torn_manifest(path: Path) -> None:
    (path / MANIFEST).write_text((path / MANIFEST).read_text()[:50])


def empty_manifest(path: Path) -> None:
    (path / MANIFEST).write_text("")


def binary_manifest(path: Path) -> None:
    (path / MANIFEST).write_bytes(b"\xff\xfe\x00")


def poor_manifest(path: Path) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    del manifest["sha256"], manifest["score"]
    (path / MANIFEST).write_text(json.dumps(manifest))


def wrong_manifest(path: Path) -> None:
    (path / MANIFEST).write_text("[]")


def no_manifest(path: Path) -> None:
    (path / MANIFEST).unlink()


LOUD = [
    truncated,
    flipped,
    emptied,
    stateless,
    torn_manifest,
    empty_manifest,
    binary_manifest,
    poor_manifest,
    wrong_manifest,
]


@pytest.mark.parametrize("damage", LOUD)
def test_a_damaged_one_is_skipped_with_a_warning_for_the_one_before(
    log: CheckpointLog, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    save(log, 10, 20)
    damage(folder(log, 20))
    assert newest(log) == 10
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"checkpoint {folder(log, 20)}" in record.getMessage()


def renamed(log: CheckpointLog) -> None:
    """Move checkpoint 20 to the name of step 30, with a manifest for that folder that names step 20."""
    manifest = read_manifest(folder(log, 20))
    folder(log, 20).rename(folder(log, 30))
    (folder(log, 30) / MANIFEST).write_text(record_text(MANIFEST, manifest, folder(log, 30).name))


def of_another_step(log: CheckpointLog) -> None:
    """Move checkpoint 20 to the name of step 30, with a manifest that names step 30; only the state is of step 20."""
    position = at(30)
    renamed(log)
    manifest = read_manifest(folder(log, 30)).model_copy(
        update={"epoch": position.epoch, "step_in_epoch": position.step_in_epoch, "step": position.step}
    )
    (folder(log, 30) / MANIFEST).write_text(record_text(MANIFEST, manifest, folder(log, 30).name))


@pytest.mark.parametrize("change", [renamed, of_another_step])
def test_a_checkpoint_of_another_step_is_not_used(
    log: CheckpointLog, caplog: pytest.LogCaptureFixture, change: Callable[[CheckpointLog], None]
) -> None:
    save(log, 10, 20)
    change(log)
    assert newest(log) == 10
    assert "its manifest tells of another step than its state" in caplog.text


def test_one_without_a_manifest_does_not_exist(log: CheckpointLog) -> None:
    save(log, 10, 20)
    no_manifest(folder(log, 20))
    assert steps(log) == [10]
    assert newest(log) == 10


@pytest.mark.parametrize("damage", [*LOUD, no_manifest])
def test_a_damaged_one_is_made_again_when_training_comes_by(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    log = opened(tmp_path, keep_newest=5)
    save(log, 10, 20)
    damage(folder(log, 20))
    again = opened(tmp_path, keep_newest=5)
    assert newest(again) == 10
    save(again, 20, score=0.5)
    assert newest(again) == 20
    assert again.load_step(20)["step"] == 20


@pytest.mark.parametrize("damage", [*LOUD, no_manifest])
def test_a_damaged_one_does_not_stop_later_ones(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    log = opened(tmp_path)
    save(log, 10, 20)
    damage(folder(log, 20))
    save(log, 30, 40, 50)
    assert newest(log) == 50
    assert steps(log) == [40, 50]


@pytest.mark.parametrize("damage", LOUD)
def test_all_damaged_is_a_start_from_nothing(log: CheckpointLog, damage: Callable[[Path], None]) -> None:
    save(log, 10, 20)
    for step in (10, 20):
        damage(folder(log, step))
    assert log.load_newest() is None


def test_the_selected_one_is_named_and_made_again_when_damaged(log: CheckpointLog) -> None:
    save(log, 5, 10, 20)
    flipped(folder(log, 10))
    assert log.load_step(20)["step"] == 20
    with pytest.raises(TransientError, match="step-000000010"):
        log.load_step(10)
    assert steps(log) == []  # later checkpoints are removed with the damaged one, and all are computed again
    with pytest.raises(TransientError, match="step-000000099"):
        log.load_step(99)


def test_a_superseded_attempt_removes_no_damaged_checkpoint(tmp_path: Path) -> None:
    log = opened(tmp_path)
    save(log, 10, 20)
    flipped(folder(log, 20))
    again = opened(tmp_path)
    assert newest(again) == 10

    def superseded() -> None:
        raise SupersededError("a newer attempt has begun")

    again.before_commit = superseded
    with pytest.raises(SupersededError):
        again.load_step(20)
    for step in (20, 30):  # the folder of the damaged checkpoint, and another folder
        with pytest.raises(SupersededError):
            save(again, step)
    assert steps(log) == [10, 20]


class Bomb:
    """An object that creates the file `mark` when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def forge(path: Path) -> None:
    """Make the manifest match the present content of the state file."""
    manifest = json.loads((path / MANIFEST).read_text())
    del manifest["sha256_of_the_rest"]
    digest, size = digest_file(path / STATE), (path / STATE).stat().st_size
    (path / MANIFEST).write_text(json.dumps(manifest | {"sha256": digest, "bytes": size}))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("how", ["torch", "pickle", "zip"])
def test_a_malicious_state_is_not_executed(log: CheckpointLog, tmp_path: Path, how: str) -> None:
    save(log, 10, 20)
    mark, file = tmp_path / "executed", folder(log, 20) / STATE
    bomb = {"learner": Bomb(mark)}
    if how == "torch":
        torch.save(bomb, file)
    elif how == "pickle":
        file.write_bytes(pickle.dumps(bomb))
    else:
        torch.save(torch.load(file), file)  # with CRCs, which the state of a checkpoint does not have
        with zipfile.ZipFile(file) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        (data,) = [name for name in members if name.endswith("data.pkl")]
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in (members | {data: pickle.dumps(bomb, 2)}).items():
                archive.writestr(name, content)
    forge(folder(log, 20))
    assert newest(log) == 10
    with pytest.raises(TransientError, match="step-000000020"):
        log.load_step(20)
    assert not mark.exists()
    pickle.loads(pickle.dumps(bomb))
    assert mark.exists(), "the bomb is a dud, so this test shows nothing"


@pytest.mark.parametrize("number", [errno.EIO, errno.ETIMEDOUT])
def test_a_disk_that_does_not_give_a_manifest_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    save(opened(tmp_path), 1, 2)

    def fail(path: Path) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(checkpoint_log, "read_manifest", fail)
    with pytest.raises(OSError, match=os.strerror(number)):
        newest(opened(tmp_path))
    monkeypatch.undo()
    assert newest(opened(tmp_path)) == 2


def test_a_state_that_the_disk_can_not_read_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(opened(tmp_path), 1, 2)

    bad = ["2"]

    def unreadable(path: Path, *_: object) -> str:
        if path.parent.name.endswith(tuple(bad)):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return digest_file(path)

    monkeypatch.setattr(checkpoint_log, "digest_file", unreadable)
    assert newest(opened(tmp_path)) == 1
    assert "Input/output error" in caplog.text
    bad.append("1")
    with pytest.raises(OSError, match="Input/output error"):
        newest(opened(tmp_path))
    bad.clear()
    assert newest(opened(tmp_path)) == 2, "nothing is removed: the disk may be readable again"
    bad.append("2")
    log = opened(tmp_path)
    assert newest(log) == 1
    monkeypatch.undo()
    save(log, 2, 3)
    assert newest(opened(tmp_path)) == 3
    bad[:] = ["3"]
    monkeypatch.setattr(checkpoint_log, "digest_file", unreadable)
    with pytest.raises(TransientError, match="Input/output error"):
        opened(tmp_path).load_step(3)
    assert newest(opened(tmp_path)) == 2
