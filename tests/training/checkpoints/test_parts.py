"""Checkpoints that several ranks write together, here in threads: complete or absent, read by any number of ranks."""

import errno
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import KEY, at, folder, steps
from safetensors.torch import load_file, save_file

from training.attempts.fence import Fence
from training.checkpoints import parts
from training.checkpoints.checkpoint_log import CheckpointLog
from training.checkpoints.parts import OwnRows, StoredRows, part_files, whole
from training.checkpoints.stored_checkpoints import StoredCheckpointLog
from training.checkpoints.stored_run import StoredRun
from training.checkpoints.writers import Writers
from training.errors import DataError, TransientError
from training.settings.schema import CheckpointSettings
from training.storage.files import digest_file
from training.storage.objects.base import open_store

# As torch.chunk divides 7 rows.
SPLITS = {
    1: (7,),
    2: (4, 3),
    3: (3, 3, 1),
    4: (2, 2, 2, 1),
    5: (2, 2, 2, 1, 0),
}
Logs = list[CheckpointLog]


def writers(count: int) -> list[Writers]:
    """Ranks of one group, in threads of this process."""
    texts, meeting = [""] * count, threading.Barrier(count, timeout=60)

    def exchange_of(rank: int) -> Callable[[str], list[str]]:
        def exchange(text: str) -> list[str]:
            texts[rank] = text
            meeting.wait()
            exchanged = list(texts)
            meeting.wait()
            return exchanged

        return exchange

    return [Writers(rank, count, exchange_of(rank), "1.1-a") for rank in range(count)]


def opened(root: Path, count: int) -> Logs:
    """The logs of `count` ranks that share a disk."""
    return [
        CheckpointLog(root / "checkpoints", CheckpointSettings(), KEY, writers=member)
        for member in writers(count)
    ]


def stored(root: Path, count: int) -> Logs:
    """The logs of `count` ranks, each with its own disk, and with an object store."""
    store, prefix = open_store(f"file://{root}/store"), "runs/digits/0123456789abcdef"
    fence = Fence(root / "fence", StoredRun(store, prefix).begin("driver", at_least=1), 1, "driver")
    StoredRun(store, prefix, fence).enter()
    logs: Logs = []
    for member in writers(count):
        run = StoredRun(store, prefix, fence if member.is_first else None)
        disk = root / f"disk-{count}-{member.rank}"
        logs.append(StoredCheckpointLog(disk, CheckpointSettings(), KEY, writers=member, stored=run))
    return logs


def state(rank: int, count: int, step: int) -> dict[str, Any]:
    """The state of a rank: rows of weights and of their momentum, and a number that all ranks have."""
    start = sum(SPLITS[count][:rank])
    mine = slice(start, start + SPLITS[count][rank])
    weights = torch.arange(21.0).reshape(7, 3) + step
    flattened = OwnRows(weights[mine].flatten(), 3 * start, (21,), unflattened=(7, 3))
    return {
        "model": {
            "weight": OwnRows(weights[mine], start, (7, 3)),
            "flattened": flattened,
            "seen": torch.tensor(step),
        },
        "optimizer": {"state": {0: {"momentum": OwnRows(-weights[mine].to(torch.bfloat16), start, (7, 3))}}},
    }


def save(logs: Logs, step: int) -> list[BaseException | None]:
    """Save a checkpoint on all ranks; returns the error of each rank."""

    def work(rank: int) -> None:
        logs[rank].save(at(step), state(rank, len(logs), step), None)
        logs[rank].wait()

    with ThreadPoolExecutor(len(logs)) as pool:
        return [future.exception() for future in [pool.submit(work, rank) for rank in range(len(logs))]]


def assert_is(loaded: dict[str, Any], step: int) -> None:
    weights = torch.arange(21.0).reshape(7, 3) + step
    assert torch.equal(loaded["model"]["weight"].read(0, 7), weights)
    for start in range(7):
        for stop in range(start, 8):
            assert torch.equal(loaded["model"]["weight"].read(start, stop - start), weights[start:stop])
    assert torch.equal(whole(loaded)["model"]["flattened"], weights)
    assert torch.equal(loaded["model"]["flattened"].read(2, 17), weights.flatten()[2:19])
    assert torch.equal(whole(loaded)["optimizer"]["state"][0]["momentum"], -weights.to(torch.bfloat16))
    assert loaded["model"]["seen"] == step


@pytest.mark.parametrize("open_logs", [opened, stored])
@pytest.mark.parametrize("count", [2, 5])
def test_any_number_of_ranks_reads_what_another_number_wrote(
    tmp_path: Path, count: int, open_logs: Callable[[Path, int], Logs]
) -> None:
    assert save(open_logs(tmp_path, count), 10) == [None] * count
    for log in (*open_logs(tmp_path, 1), *open_logs(tmp_path, 3)):
        position, loaded = log.load_newest() or pytest.fail("no checkpoint")
        assert position == at(10)
        assert_is(loaded, 10)


def test_each_rank_wrote_its_rows_alone(tmp_path: Path) -> None:
    logs = opened(tmp_path, 2)
    save(logs, 10)
    for rank, rows in enumerate(SPLITS[2]):
        part = load_file(part_files(folder(logs[0], 10), rank)[0])
        assert {name: len(tensor) for name, tensor in part.items()} == {
            "model/weight": rows,
            "model/flattened": 3 * rows,
            "optimizer/state/0/momentum": rows,
        }
    assert sorted(logs[0].folder.glob(".*")) == []  # no half-written part is left


@pytest.mark.parametrize("open_logs", [opened, stored])
@pytest.mark.parametrize("failing", [0, 1])
def test_without_the_part_of_one_rank_there_is_no_checkpoint(
    tmp_path: Path, failing: int, open_logs: Callable[[Path, int], Logs], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = open_logs(tmp_path, 2)
    save(logs, 10)
    logs[failing].moved = lambda _: (_ for _ in ()).throw(OSError("disk full"))
    errors = save(logs, 20)
    assert isinstance(errors[failing], OSError)
    assert isinstance(errors[1 - failing], TransientError)
    assert f"worker {failing} did not write its part of a checkpoint: OSError: disk full" in str(
        errors[1 - failing]
    )
    (log,) = open_logs(tmp_path, 1)
    position, loaded = log.load_newest() or pytest.fail("no checkpoint")
    assert position == at(10)
    assert_is(loaded, 10)


def test_a_rank_that_dies_before_all_parts_are_written_leaves_no_checkpoint(tmp_path: Path) -> None:
    logs = opened(tmp_path, 2)

    def lost_peer(text: str) -> list[str]:
        raise ConnectionResetError(text)

    logs[0].writers = replace(logs[0].writers, exchange=lost_peer)
    logs[0].save(at(10), state(0, 2, 10), None)
    with pytest.raises(ConnectionResetError):
        logs[0].wait()
    assert steps(logs[0]) == []
    assert opened(tmp_path, 1)[0].load_newest() is None


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def replaced(file: Path) -> None:
    save_file({name: tensor + 1 for name, tensor in load_file(file).items()}, file)


def indexed_elsewhere(file: Path) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | {"bytes": 1}))


@pytest.mark.parametrize(
    ("number", "damage"),
    [(0, flip), (0, Path.unlink), (0, replaced), (1, flip), (1, Path.unlink), (1, indexed_elsewhere)],
)
def test_a_damaged_part_costs_the_checkpoint_not_more(
    tmp_path: Path, number: int, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    logs = opened(tmp_path, 2)
    save(logs, 10)
    save(logs, 20)
    damage(part_files(folder(logs[0], 20), 1)[number])
    position, loaded = opened(tmp_path, 1)[0].load_newest() or pytest.fail("no checkpoint")
    assert position == at(10)
    assert_is(loaded, 10)
    assert "part 1 is missing, or not the bytes that were written" in caplog.text


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_a_disk_that_does_not_give_a_part_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    save(opened(tmp_path, 2), 10)

    def fail(path: Path, *moved: Callable[[int], None]) -> str:
        if path.name == f"part-00001{suffix}":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return digest_file(path, *moved)

    monkeypatch.setattr(parts, "digest_file", fail)
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        opened(tmp_path, 1)[0].load_newest()
    monkeypatch.undo()
    assert opened(tmp_path, 1)[0].load_newest() is not None


def test_rows_that_no_part_has_are_an_error(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(2, 3)}, tmp_path / "part")
    stored_rows = StoredRows("w", (4, 3), "float32", ((tmp_path / "part", 0),))
    assert stored_rows.nbytes == 48
    with pytest.raises(DataError, match="rows of w are missing"):
        stored_rows.read(1, 2)
