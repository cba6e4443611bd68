"""How much work the main path does, counted instead of timed, so that load on the machine can't hide a regression.

A comment at each bound explains the count. A change that moves a bound is a defect, or deserves a line in
docs/performance.md.
"""

import hashlib
import os
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_runs

from training.checkpoints.checkpoint_log import CheckpointLog
from training.data import dataset
from training.data import sample_order as order
from training.data.preparation.prepare import make_version, plan_shards, write_raw
from training.data.sample_order import Permutation, SampleOrder
from training.data.sources.digits import Digits
from training.records import DatasetVersion
from training.settings.schema import DataSettings
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.network.feeds import MemoryFeed
from training.trainers.network.inputs import ImageInputs
from training.trainers.ranks import Ranks
from training.trainers.torch.replica import Replica

_opened: list[list[str]] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _opened:
        _opened[-1].append(str(arguments[0]))


sys.addaudithook(_hook)  # an audit hook can't be removed, so it is added once


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """Paths of all files that the block opens."""
    _opened.append([])
    try:
        yield _opened[-1]
    finally:
        _opened.pop()


@contextmanager
def counted(patch: pytest.MonkeyPatch, owner: Any, name: str) -> Iterator[Counter[str]]:
    """Counts the calls of `owner.name` during the block."""
    calls, original = Counter[str](), getattr(owner, name)

    def counting(*args: Any, **options: Any) -> Any:
        calls[name] += 1
        return original(*args, **options)

    with patch.context() as inside:
        inside.setattr(owner, name, counting)
        yield calls


def trained(home: Home, version: DatasetVersion, **sections: Any) -> tuple[Home, Any]:
    """Train without the replay check, which creates and reads additional files."""
    checkpoint = {"replay": False} | sections.pop("checkpoint", {})
    settings = small_runs.tiny_settings(checkpoint=checkpoint, **sections)
    return home, launch(small_runs.job_for(home, version, settings))


def in_run(home: Home, paths: list[str]) -> Counter[str]:
    """How often files and folders in the home were opened, by name without its numbers."""
    inside = [
        Path(path).name.lstrip(".").partition(".")[0] for path in paths if path.startswith(str(home.root))
    ]
    return Counter("KEY" if len(name) == 16 else name.partition("-")[0] for name in inside)


def test_a_batch_is_gathered_once_and_copied_nowhere_else(digits_version: DatasetVersion) -> None:
    columns = dataset.open_columns(digits_version, "train")
    rows = np.arange(len(columns))
    feed = MemoryFeed(
        columns, rows, SampleOrder(len(rows), 512, seed=0), Ranks.of_this_process(use_gpu=False)
    )
    batches = feed.batches(0, 0)
    next(batches)  # computes the order's block before the measurement
    tracemalloc.start()
    try:
        batch = next(batches)
        used, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    images, labels = batch.inputs.nbytes, batch.targets.nbytes
    # Images, labels and row numbers (8 bytes a row, twice: positions and rows), and some Python objects.
    assert images + labels <= used <= peak <= images + labels + 2 * 8 * len(batch.rows) + 4096


def test_the_order_is_computed_once_a_block_and_not_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    order._block.cache_clear()
    order_of = SampleOrder(100_000, 128, seed=3)
    with counted(monkeypatch, Permutation, "__call__") as calls:
        for step in range(order_of.steps_per_epoch):
            for rank in range(2):
                order_of.share(0, step, rank, 2)
    assert calls["__call__"] == -(-100_000 // order._BLOCK)


def test_steps_open_no_files(tmp_path: Path, digits_version: DatasetVersion) -> None:
    """Files are opened for checkpoints, metric points and the end: as often for many steps as for few."""

    def opened(batch: int, folder: str) -> tuple[Counter[str], int]:
        home = Home(tmp_path / folder)
        sections = {"training": {"global_batch_size": batch}, "tracking": {"log_every_steps": 10_000}}
        with opened_files() as paths:
            result = trained(home, digits_version, **sections)[1]
        return in_run(home, paths), result.steps

    (few, steps_few), (many, steps_many) = opened(256, "few"), opened(16, "many")
    assert steps_many > 10 * steps_few
    beats = {"rank", "fence"}  # written by the clock, once a second
    assert {k: v for k, v in many.items() if k not in beats} == {
        k: v for k, v in few.items() if k not in beats
    }


def test_a_step_is_one_forward_and_one_backward_pass(
    tmp_path: Path, digits_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        counted(monkeypatch, Replica, "_backward") as passes,
        counted(monkeypatch, ImageInputs, "augmented") as built,
    ):
        _, result = trained(Home(tmp_path / "home"), digits_version)
    assert (passes["_backward"], built["augmented"]) == (result.steps, result.steps)


def test_the_replay_check_makes_five_steps_more_at_the_most_and_reads_one_checkpoint(
    tmp_path: Path, digits_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home")
    with counted(monkeypatch, Replica, "_backward") as passes, opened_files() as paths:
        _, result = trained(home, digits_version, checkpoint={"replay": True})
    assert 1 <= passes["_backward"] - result.steps <= 5
    states = Counter(path for path in paths if path.endswith("state.pt") and ".tmp/" not in path)
    assert sorted(states.values()) in ([2, 2], [4])  # digest and content: for the replay, and for the model


def test_a_checkpoint_is_written_once_and_not_read_back(
    tmp_path: Path, digits_version: DatasetVersion
) -> None:
    home = Home(tmp_path / "home")
    with opened_files() as paths:
        _, result = trained(home, digits_version, checkpoint={"every_steps": 10, "every_s": 1000.0})
    states = Counter(path for path in paths if path.endswith("state.pt"))
    assert len(states) >= result.steps // 10
    written = {path: times for path, times in states.items() if ".tmp/" in path}
    assert set(written.values()) == {2}  # once to write and once to sync
    read = {path: times for path, times in states.items() if path not in written}
    assert list(read.values()) == [2]  # the epoch that is selected in the end: its digest, its content


def test_no_step_waits_for_a_checkpoint_that_is_done(
    tmp_path: Path, digits_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[bool] = []
    wait = CheckpointLog.wait

    def noting(log: CheckpointLog) -> None:
        waited.append(log.busy)
        wait(log)

    monkeypatch.setattr(CheckpointLog, "wait", noting)
    trained(Home(tmp_path / "home"), digits_version, checkpoint={"every_steps": None, "every_s": 1000.0})
    # Two checks for the save of each of two epochs, by all ranks together and by the log, and one at the end; only an
    # unfinished write is waited for.
    assert len(waited) == 2 * 2 + 1
    assert not waited[0]


def test_parts_are_hashed_once_when_a_dataset_is_found(
    digits_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(Path(digits_version.path).parents[2])
    hashed: list[Path] = []
    digest = hashlib.file_digest

    def noting(stream: Any, kind: str) -> Any:
        hashed.append(Path(stream.name))
        return digest(stream, kind)

    monkeypatch.setattr(hashlib, "file_digest", noting)
    assert dataset.find(home, digits_version.name, digits_version.fingerprint) is not None
    parts = [
        Path(digits_version.path) / part.path for split in digits_version.parts.values() for part in split
    ]
    assert sorted(hashed) == sorted(parts)


def test_raw_rows_which_are_checked_and_end_soon_are_not_waited_for_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, settings = Digits().fetch(tmp_path / "sources"), DataSettings()
    (shard,) = plan_shards(files, settings)
    with counted(monkeypatch, os, "fsync") as synced:
        raw = write_raw(files, shard, settings, tmp_path)
    assert raw.rows == 1797
    assert not synced
    with counted(monkeypatch, os, "fsync") as synced:
        make_version("digits", "0" * 64, files, [raw], settings, tmp_path / "version", with_ray=False)
    # A part and a folder of each split; the manifest when it is written, and again with the rest; the version's
    # folder each time; the folder that contains it.
    assert synced["fsync"] == 2 + 2 + 2 + 2 + 1


def test_columns_that_are_unpacked_read_no_parquet(digits_version: DatasetVersion) -> None:
    dataset.open_columns(digits_version, "train")
    with opened_files() as paths:
        dataset.open_columns(digits_version, "train")
    assert not [path for path in paths if path.endswith(".parquet")]
    sizes = Counter(Path(path).name for path in paths if path.startswith(digits_version.path))
    # Each column once for the checksum of its only block of 8 MiB, and three times by np.load, which reads only the
    # header and maps the rest.
    assert sizes == {
        "inputs.npy": 4,
        "targets.npy": 4,
        "digests.npy": 4,
        "pixels.npy": 4,
        "checksums.json": 1,
    }
