"""Checkpoints: bit for bit or not at all; the newest whole one is used, and nothing in it is ever executed."""

import json
import logging
import os
import pickle
import resource
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from training.checkpoint import (
    MANIFEST,
    STATE,
    CheckpointLog,
    Position,
    copy_state,
    load_weights,
    save_weights,
    weights_digest,
)
from training.errors import DataError, ResourceError, classify
from training.files import digest_file
from training.settings import CheckpointSettings

KEY = "k" * 64


def at(step: int) -> Position:
    return Position(epoch=step // 10, step_in_epoch=step % 10, step=step)


@pytest.fixture
def log(tmp_path: Path) -> CheckpointLog:
    return opened(tmp_path)


def opened(folder: Path, key: str = KEY, **settings: Any) -> CheckpointLog:
    return CheckpointLog(folder / "checkpoints", CheckpointSettings(**settings), key)


def save(log: CheckpointLog, *steps: int, score: float | None = None) -> None:
    for step in steps:
        log.save(at(step), {"step": step, "tensor": torch.full((100,), float(step))}, score, wait=True)


def steps(log: CheckpointLog) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in log.entries()]


def newest(log: CheckpointLog) -> int | None:
    """Step of the checkpoint that is used, its state being that step's."""
    found = log.load_newest()
    if found is None:
        return None
    position, state = found
    assert position == at(position.step)
    assert state["step"] == position.step
    assert torch.equal(state["tensor"], torch.full((100,), float(position.step)))
    return position.step


def folder(log: CheckpointLog, step: int) -> Path:
    return log.folder / f"step-{step:09d}"


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
        {"model": copy_state(module.state_dict()), "optimizer": copy_state(optimizer.state_dict())},
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


def test_values_come_back_as_they_were(log: CheckpointLog) -> None:
    state = {
        "half": torch.randn(3).bfloat16(), "scalar": torch.tensor(3), "empty": torch.zeros(0, 2),
        "nan": torch.tensor([float("nan"), -0.0]), "numbers": [1, 0.1 + 0.2, None, True, "ü"], "nested": {1: (2, [3])},
    }  # fmt: skip
    log.save(at(1), copy_state(state), 0.5, wait=True)
    _, found = log.load_newest() or pytest.fail("no checkpoint")
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
            assert weights_digest({"": found[name]}) == weights_digest({"": value})
        else:
            assert found[name] == value


def test_a_copied_state_shares_no_memory() -> None:
    tensor = torch.zeros(3)
    state = {"a": [tensor, (tensor, 1)], "b": tensor.view(3, 1)}
    copied = copy_state(state)
    tensor += 1
    assert copied["a"][0].sum() == copied["a"][1][0].sum() == copied["b"].sum() == 0
    assert isinstance(copied["a"][1], tuple)


def test_nothing_saved_is_nothing_found(log: CheckpointLog) -> None:
    assert log.load_newest() is None
    assert log.entries() == []
    log.wait()


def test_the_newest_is_used(tmp_path: Path) -> None:
    log = opened(tmp_path, keep_newest=20)
    save(log, 9, 10, 100, 11)
    assert newest(log) == 100
    assert newest(opened(tmp_path)) == 100


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
def test_a_damaged_one_is_skipped_aloud_for_the_one_before(
    log: CheckpointLog, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    save(log, 10, 20)
    damage(folder(log, 20))
    assert newest(log) == 10
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"checkpoint {folder(log, 20)}" in record.getMessage()


def test_one_without_a_manifest_does_not_exist(log: CheckpointLog) -> None:
    save(log, 10, 20)
    no_manifest(folder(log, 20))
    assert steps(log) == [10]
    assert newest(log) == 10


@pytest.mark.parametrize("damage", [*LOUD, no_manifest])
def test_a_damaged_one_is_made_anew_when_training_comes_by_again(
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


def test_another_runs_checkpoint_is_not_used(tmp_path: Path) -> None:
    save(opened(tmp_path, key="a" * 64), 10)
    assert opened(tmp_path).load_newest() is None


def test_another_format_is_not_used(log: CheckpointLog) -> None:
    save(log, 10)
    manifest = json.loads((folder(log, 10) / MANIFEST).read_text())
    (folder(log, 10) / MANIFEST).write_text(json.dumps(manifest | {"format": 99}))
    assert log.load_newest() is None


def test_the_selected_one_is_refused_by_name_when_damaged(log: CheckpointLog) -> None:
    save(log, 10, 20)
    flipped(folder(log, 10))
    assert log.load_step(20)["step"] == 20
    with pytest.raises(DataError, match="step-000000010"):
        log.load_step(10)
    with pytest.raises(DataError, match="step-000000099"):
        log.load_step(99)


class Bomb:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def forge(path: Path) -> None:
    """Make the manifest vouch for whatever state lies beside it."""
    manifest = json.loads((path / MANIFEST).read_text())
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
        with zipfile.ZipFile(file) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        (data,) = [name for name in members if name.endswith("data.pkl")]
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in (members | {data: pickle.dumps(bomb, 2)}).items():
                archive.writestr(name, content)
    forge(folder(log, 20))
    assert newest(log) == 10
    with pytest.raises(DataError, match="step-000000020"):
        log.load_step(20)
    assert not mark.exists()
    pickle.loads(pickle.dumps(bomb))
    assert mark.exists(), "the bomb is a dud, so this test shows nothing"


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
        with pytest.raises(Exception) as caught:  # noqa: PT011 - torch decides on its kind
            log.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(classify(caught.value), ResourceError)
    assert [path.name for path in log.folder.iterdir()] == ["step-000000010"]
    assert newest(log) == 10


def test_other_conditions_are_said_aloud(log: CheckpointLog, caplog: pytest.LogCaptureFixture) -> None:
    save(log, 10)
    manifest = json.loads((folder(log, 10) / MANIFEST).read_text())
    manifest["contract"]["threads"] = "77"
    (folder(log, 10) / MANIFEST).write_text(json.dumps(manifest))
    assert newest(log) == 10
    assert f"threads 77 -> {torch.get_num_threads()}" in caplog.text


WEIGHTS = {"b.weight": torch.randn(3, 4), "a": torch.randn(2).bfloat16(), "count": torch.tensor(7)}


def test_weights_come_back_bit_for_bit(tmp_path: Path) -> None:
    save_weights(WEIGHTS, tmp_path / "weights.safetensors")
    found = load_weights(tmp_path / "weights.safetensors")
    assert found.keys() == WEIGHTS.keys()
    assert all(
        torch.equal(found[name], value) and found[name].dtype == value.dtype
        for name, value in WEIGHTS.items()
    )
    assert weights_digest(found) == weights_digest(WEIGHTS)


def test_tied_weights_can_be_saved(tmp_path: Path) -> None:
    tensor = torch.randn(4, 4)
    save_weights({"a": tensor, "b": tensor, "view": tensor.T}, tmp_path / "weights.safetensors")
    found = load_weights(tmp_path / "weights.safetensors")
    assert torch.equal(found["view"], found["a"].T)


def test_the_digest_sees_names_shapes_types_and_bits() -> None:
    a = WEIGHTS["b.weight"]
    flipped_bit = a.clone()
    flipped_bit.view(torch.int32)[0, 0] ^= 1
    variants = [
        {"x": a}, {"y": a}, {"x": a.reshape(4, 3)}, {"x": a.view(torch.int32)}, {"x": flipped_bit}, {"x": a, "y": a},
    ]  # fmt: skip
    assert len({weights_digest(one) for one in variants}) == len(variants)
    assert weights_digest({"p": a, "q": a}) == weights_digest({"q": a.clone(), "p": a})
    assert weights_digest({"x": a.T.contiguous().T}) == weights_digest({"x": a})


@pytest.mark.parametrize("size", [0, 5, 100])
def test_damaged_weights_are_named(tmp_path: Path, size: int) -> None:
    file = tmp_path / "weights.safetensors"
    save_weights(WEIGHTS, file)
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(DataError, match=str(file)):
        load_weights(file)
    file.unlink()
    with pytest.raises(DataError, match=str(file)):
        load_weights(file)
