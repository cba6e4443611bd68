"""Checkpoints are restored bit for bit or not at all; the newest and the best checkpoints are kept."""

import json
import pickle
import resource
import shutil
import threading
from pathlib import Path

import pytest
import torch
from checkpoints import at, folder, newest, opened, save, steps

from training.attempts.fence import SupersededError
from training.checkpoints.checkpoint_files import MANIFEST, STATE
from training.checkpoints.checkpoint_log import CheckpointLog
from training.checkpoints.state_copies import StateCopies
from training.checkpoints.weights import weights_digest
from training.errors import ResourceError, classify


def trained(steps: int, module: torch.nn.Module, optimizer: torch.optim.Optimizer, first: int = 0) -> None:
    for step in range(first, first + steps):
        inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        module(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def fresh() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    return module, torch.optim.AdamW(module.parameters(), lr=0.01)


def test_training_goes_on_bit_for_bit(log: CheckpointLog) -> None:
    module, optimizer = fresh()
    trained(5, module, optimizer)
    log.save(
        at(5),
        {"model": module.state_dict(), "optimizer": optimizer.state_dict()},
        None,
    )
    trained(5, module, optimizer, first=5)  # while the checkpoint is being written
    log.wait()
    other, other_optimizer = fresh()
    position, state = log.load_newest() or pytest.fail("no checkpoint")
    other.load_state_dict(state["model"])
    other_optimizer.load_state_dict(state["optimizer"])
    assert position == at(5)
    trained(5, other, other_optimizer, first=5)
    assert weights_digest(other.state_dict()) == weights_digest(module.state_dict())


def test_what_is_read_counts_as_progress_while_it_is_read(log: CheckpointLog) -> None:
    state = {"weights": torch.arange(2_000_000.0), "name": "one"}
    log.save(at(5), state, None)
    log.wait()
    read: list[int] = []
    log.moved = read.append
    _, loaded = log.load_newest() or pytest.fail("no checkpoint")
    assert torch.equal(loaded["weights"], state["weights"])
    assert loaded["name"] == "one"
    size = (folder(log, 5) / STATE).stat().st_size
    # For the digest, then for the state; torch skips what fills the file up.
    assert sum(read) >= 2 * size - 2**16
    assert max(read) <= 2**20


def test_what_is_steady_is_copied_while_training_goes_on(
    log: CheckpointLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying, fill = threading.Event(), StateCopies.fill
    monkeypatch.setattr(StateCopies, "fill", lambda copies: (copying.wait(60), fill(copies)))
    weights, buffer = torch.zeros(3), torch.zeros(3)
    log.save(at(1), {"weights": weights, "buffer": buffer}, None, steady={weights.data_ptr()})
    buffer += 1  # as a forward pass would change it
    waiting = threading.Thread(target=log.wait_until_copied)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    weights += 2  # not allowed before the copy is complete: shows that the copy is taken later
    copying.set()
    waiting.join(60)
    weights += 1
    log.wait()
    _, state = log.load_newest() or pytest.fail("no checkpoint")
    assert (state["weights"].tolist(), state["buffer"].tolist()) == ([2.0] * 3, [0.0] * 3)


def test_a_copy_that_fails_fails_the_checkpoint_and_keeps_nobody_waiting(
    log: CheckpointLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StateCopies, "fill", lambda _: 1 / 0)
    log.save(at(1), {}, None)
    log.wait_until_copied()
    with pytest.raises(ZeroDivisionError):
        log.wait()
    assert log.entries() == []


def test_values_come_back_as_they_were(log: CheckpointLog) -> None:
    state = {
        "half": torch.randn(3).bfloat16(), "scalar": torch.tensor(3), "empty": torch.zeros(0, 2),
        "nan": torch.tensor([float("nan"), -0.0]), "numbers": [1, 0.1 + 0.2, None, True, "ü"], "nested": {1: (2, [3])},
    }  # fmt: skip
    log.save(at(1), state, 0.5)
    log.wait()
    _, loaded = log.load_newest() or pytest.fail("no checkpoint")
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            assert (loaded[name].dtype, loaded[name].shape) == (value.dtype, value.shape)
            assert weights_digest({"": loaded[name]}) == weights_digest({"": value})
        else:
            assert loaded[name] == value


def test_nothing_saved_is_nothing_found(log: CheckpointLog) -> None:
    assert log.load_newest() is None
    assert log.entries() == []
    log.wait()


def test_the_newest_is_used(tmp_path: Path) -> None:
    log = opened(tmp_path, keep_newest=20)
    save(log, 9, 10, 100, 11)
    assert newest(log) == 100
    assert newest(opened(tmp_path)) == 100


def test_another_runs_checkpoint_is_not_used(tmp_path: Path) -> None:
    save(opened(tmp_path, key="a" * 64), 10)
    assert opened(tmp_path).load_newest() is None


def test_another_format_is_not_used(log: CheckpointLog) -> None:
    save(log, 10)
    manifest = json.loads((folder(log, 10) / MANIFEST).read_text())
    del manifest["sha256_of_the_rest"]
    (folder(log, 10) / MANIFEST).write_text(json.dumps(manifest | {"format": 99}))
    assert log.load_newest() is None


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    log = opened(tmp_path, keep_newest=2, keep_best=2)
    for step, score in (
        (10, 0.5),
        (20, 0.2),
        (25, None),
        (30, 0.3),
        (35, None),
        (40, 0.4),
        (45, None),
        (50, 0.6),
    ):
        save(log, step, score=score)
    assert steps(log) == [20, 30, 45, 50]
    assert [path.name for path in log.folder.iterdir() if path.name.startswith(".")] == []


def test_of_equal_scores_the_first_is_the_best(tmp_path: Path) -> None:
    log = opened(tmp_path, keep_newest=2, keep_best=1)
    for step in (10, 20, 30, 40, 50):
        save(log, step, score=0.5)
    assert steps(log) == [10, 40, 50]


def test_what_a_crash_left_behind_is_ignored(log: CheckpointLog) -> None:
    save(log, 10)
    for name in (".step-000000020.0123abcd.tmp", ".step-000000005.removed"):
        shutil.copytree(folder(log, 10), log.folder / name)
    half = log.folder / ".step-000000030.4567cdef.tmp"
    half.mkdir()
    (half / STATE).write_bytes(b"half")
    assert steps(log) == [10]
    assert newest(log) == 10
    save(log, 20, 30)
    assert newest(log) == 30


def test_a_failed_write_is_raised_at_wait_and_once(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    log = opened(tmp_path)
    log.save(at(10), {}, None)
    with pytest.raises(OSError, match="checkpoints"):
        log.wait()
    log.wait()


def test_a_failed_write_is_raised_at_the_next_save(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.save(at(10), {"not data": lambda: None}, None)
    with pytest.raises((AttributeError, pickle.PicklingError)):
        log.save(at(20), {}, None)
    assert log.entries() == []
    assert list(log.folder.iterdir()) == []


def test_a_full_disk_is_said_to_be_one_and_leaves_nothing(tmp_path: Path) -> None:
    log = opened(tmp_path)
    save(log, 10)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        log.save(at(20), {"large": torch.zeros(1 << 20)}, None)
        with pytest.raises(Exception) as caught:  # noqa: PT011 - torch decides on its type
            log.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(classify(caught.value), ResourceError)
    assert [path.name for path in log.folder.iterdir()] == ["step-000000010"]
    assert newest(log) == 10


def test_other_conditions_are_said_with_a_warning(
    log: CheckpointLog, caplog: pytest.LogCaptureFixture
) -> None:
    save(log, 10)
    manifest = json.loads((folder(log, 10) / MANIFEST).read_text())
    manifest["contract"]["threads"] = "77"
    del manifest["sha256_of_the_rest"]
    (folder(log, 10) / MANIFEST).write_text(json.dumps(manifest))
    assert newest(log) == 10
    assert f"threads 77 -> {torch.get_num_threads()}" in caplog.text


@pytest.mark.parametrize(("allowed", "kept"), [(0, [1, 2]), (1, [1, 2, 3])])
def test_a_superseded_attempt_removes_no_checkpoint(
    log: CheckpointLog, allowed: int, kept: list[int]
) -> None:
    """A newer attempt begins before the new checkpoint gets its name, or before older checkpoints are removed."""
    save(log, 1, 2)
    asked: list[int] = []

    def superseded() -> None:
        asked.append(len(steps(log)))
        if len(asked) > allowed:
            raise SupersededError("a newer attempt has begun")

    log.settings = log.settings.model_copy(update={"keep_newest": 1})
    log.before_commit = superseded
    with pytest.raises(SupersededError):
        save(log, 3)
    assert steps(log) == kept
