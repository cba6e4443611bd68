"""Feeds deliver every training row to some rank once per epoch, and no validation row."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from small_runs import tiny_settings
from torch.utils.data import Dataset

from training.data.dataset import Columns, is_validation, open_columns
from training.data.sample_order import SampleOrder
from training.errors import SettingError, TransientError, classify
from training.records import DatasetVersion
from training.trainers.network.feeds import (
    Batch,
    MemoryFeed,
    columns_dataset,
    read_ahead,
)
from training.trainers.network.loader_feed import LoaderFeed, loader_feed
from training.trainers.ranks import Ranks
from training.trainers.rows import training_rows


@pytest.fixture(scope="module")
def columns(small_version: DatasetVersion) -> Columns:
    return open_columns(small_version, "train")


def rank(number: int = 0, world_size: int = 1) -> Ranks:
    return Ranks(number, world_size, torch.device("cpu"), distributed=False)


def learn_of(columns: Columns) -> Any:
    return training_rows(columns, tiny_settings())[0]


def memory(columns: Columns, ranks: Ranks, batch: int = 64, seed: int = 0) -> MemoryFeed:
    learn = learn_of(columns)
    return MemoryFeed(columns, learn, SampleOrder(len(learn), batch, seed), ranks)


def loader(columns: Columns, ranks: Ranks, **data: Any) -> LoaderFeed:
    learn, settings = learn_of(columns), tiny_settings(data=data)
    return loader_feed(columns_dataset(columns), learn, SampleOrder(len(learn), 64, 0), settings, ranks)


def rows(batches: list[Batch]) -> list[int]:
    return [int(row) for batch in batches for row in batch.rows]


def check_content(columns: Columns, batch: Batch) -> None:
    assert (batch.inputs.dtype, batch.targets.dtype) == (torch.uint8, torch.int64)
    assert np.array_equal(batch.inputs.numpy(), columns.inputs[batch.rows])
    assert np.array_equal(batch.targets.numpy(), columns.targets[batch.rows])


def test_training_and_validation_rows_are_all_rows_once(columns: Columns) -> None:
    learn, validate = training_rows(columns, tiny_settings(data={"validation_share": 0.25}))
    assert np.array_equal(np.sort(np.concatenate([learn, validate])), np.arange(len(columns)))
    assert np.array_equal(validate, np.flatnonzero(is_validation(columns.digests, 0.25)))
    assert 0.15 < len(validate) / len(columns) < 0.35


@pytest.mark.parametrize("share", [1e-9, 1 - 1e-9])
def test_too_small_a_side_is_refused(columns: Columns, share: float) -> None:
    with pytest.raises(
        SettingError, match=r"data\.validation_share: .* divided into \d+ to learn from and \d+ to validate"
    ):
        training_rows(columns, tiny_settings(data={"validation_share": share}))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_memory_brings_every_training_row_once_over_all_ranks(columns: Columns, world_size: int) -> None:
    feeds = [memory(columns, rank(number, world_size)) for number in range(world_size)]
    assert len({feed.steps_per_epoch for feed in feeds}) == 1
    epochs = []
    for epoch in range(2):
        batches = [list(feed.batches(epoch, 0)) for feed in feeds]
        assert sorted(row for of_feed in batches for row in rows(of_feed)) == sorted(learn_of(columns))
        for together in zip(*batches, strict=True):
            assert {batch.global_rows for batch in together} == {
                sum(len(batch.targets) for batch in together)
            }
        for batch in batches[0]:
            check_content(columns, batch)
        epochs.append(rows(batches[0]))
    assert epochs[0] != epochs[1]


def test_memory_steps_are_the_same_for_every_world_size(columns: Columns) -> None:
    alone = list(memory(columns, rank()).batches(3, 0))
    pair = [list(memory(columns, rank(number, 2)).batches(3, 0)) for number in range(2)]
    for whole, first, second in zip(alone, *pair, strict=True):
        assert rows([whole]) == rows([first, second])
        assert whole.global_rows == first.global_rows


def test_memory_is_entered_at_any_step(columns: Columns) -> None:
    feed = memory(columns, rank())
    assert feed.exact
    whole = list(feed.batches(1, 0))
    assert len(whole) == feed.steps_per_epoch
    for step in range(feed.steps_per_epoch + 1):
        assert rows(list(feed.batches(1, step))) == rows(whole[step:])


def test_a_batch_is_a_copy(columns: Columns) -> None:
    feed = memory(columns, rank())
    first = next(iter(feed.batches(0, 0)))
    first.inputs.zero_()
    first.targets.zero_()
    check_content(columns, next(iter(feed.batches(0, 0))))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_loader_has_the_rows_of_each_step_of_the_memory_feed(columns: Columns, world_size: int) -> None:
    for number in range(world_size):
        ranks = rank(number, world_size)
        feed, expected = loader(columns, ranks), memory(columns, ranks)
        assert feed.exact
        assert feed.steps_per_epoch == expected.steps_per_epoch
        for epoch in range(2):
            check_same(list(feed.batches(epoch, 0)), list(expected.batches(epoch, 0)))
            check_same(list(feed.batches(epoch, 2)), list(expected.batches(epoch, 2)))


def test_with_several_workers_ray_train_prepares_the_loader(
    columns: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a sampler of Ray's, which would choose other rows; the prepared loader is the one that is read."""
    calls: list[tuple[Any, dict[str, Any]]] = []

    def prepared(given: Any, **options: Any) -> Any:
        calls.append((given, options))
        return given

    monkeypatch.setattr("ray.train.torch.prepare_data_loader", prepared)
    ranks = replace(rank(0, 2), distributed=True)
    feed = loader(columns, ranks)
    ((given, options),) = calls
    assert options == {"add_dist_sampler": False}
    assert feed.loader is given
    assert rows(list(feed.batches(0, 0))) == rows(list(memory(columns, rank(0, 2)).batches(0, 0)))


def test_loader_processes_live_on_and_read_the_same_batches_from_any_step(columns: Columns) -> None:
    """An epoch that is left early leaves no batch for the next epoch."""
    feed, expected = loader(columns, rank(), loader_processes=2, loader_prefetch=3), memory(columns, rank())
    assert feed.loader.prefetch_factor == 3
    processes = []
    for epoch, first, taken in [(0, 0, 2), (0, 1, 99), (1, 0, 99), (4, 3, 99)]:
        batches = list(islice(feed.batches(epoch, first), taken))
        check_same(batches, list(islice(expected.batches(epoch, first), taken)))
        processes.append({child.pid for child in psutil.Process().children()})
    assert set.intersection(*processes)


def test_a_killed_process_of_a_loader_is_an_error_that_says_so(columns: Columns) -> None:
    before = set(psutil.Process().children())
    batches = loader(columns, rank(), loader_processes=1).batches(0, 0)
    next(batches)
    (process,) = set(psutil.Process().children()) - before
    with pytest.raises(RuntimeError) as died:
        kill_and_read(process, batches)
    check_a_lost_process(died.value)
    for segment in Path("/dev/shm").glob(f"torch_{process.pid}_*"):  # of batches on their way
        segment.unlink()


def kill_and_read(process: psutil.Process, batches: Iterator[Batch]) -> None:
    """Torch's handler of SIGCHLD may raise from the kill on, wherever this thread is."""
    process.kill()
    try:
        list(batches)
    except RuntimeError:
        # The connection can break before SIGCHLD comes, whose error a later test would meet.
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.05)
        time.sleep(0.5)
        raise


def check_a_lost_process(error: BaseException) -> None:
    known = classify(error)
    assert isinstance(known, TransientError)
    assert "a process of the DataLoader died" in str(known)
    assert "data.loader_processes" in str(known)


class Broken(Dataset[Any]):
    """Raises `error` for each row; to break a connection, in the process that receives the row."""

    def __init__(self, error: Exception, receiving: bool):
        self.error, self.receiving = error, receiving

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if self.receiving:
            return Unreadable(self.error), Unreadable(self.error)
        raise self.error


class Unreadable:
    """Raises `error` when it is unpickled, as a tensor does whose sender has died."""

    def __init__(self, error: Exception):
        self.error = error

    def __reduce__(self) -> tuple[Any, tuple[Exception]]:
        return raise_error, (self.error,)


def raise_error(error: Exception) -> None:
    raise error


@pytest.mark.extended
@pytest.mark.parametrize("error", [EOFError(), ConnectionResetError(104, "Connection reset by peer")])
@pytest.mark.parametrize("processes", [0, 1])
def test_a_broken_connection_is_told_from_an_error_of_the_dataset(error: Exception, processes: int) -> None:
    order, settings = SampleOrder(128, 64, 0), tiny_settings(data={"loader_processes": processes})

    def read(receiving: bool) -> None:
        dataset = Broken(error, receiving)
        feed = loader_feed(dataset, np.arange(128), order, settings, rank())
        feed.loader.collate_fn = itemgetter(0)
        list(feed.batches(0, 0))

    with pytest.raises(type(error)):
        read(receiving=False)
    if processes:
        with pytest.raises(RuntimeError) as died:
            read(receiving=True)
        check_a_lost_process(died.value)


@pytest.mark.extended
def test_reading_ahead_changes_neither_bits_nor_order(columns: Columns) -> None:
    plain = memory(columns, rank())
    ahead = replace(plain, ahead=2)
    for first in (0, 3):
        check_same(list(ahead.batches(1, first)), list(plain.batches(1, first)))


def test_reading_ahead_is_bounded_and_ends_with_the_reader() -> None:
    read: list[int] = []

    def note(step: int) -> int:
        read.append(step)
        return step

    steps = read_ahead(note, range(100), 2)
    assert [next(steps) for _ in range(5)] == list(range(5))
    steps.close()
    assert read == list(range(len(read)))
    assert 5 <= len(read) <= 7
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("evergreen-feed")]


def test_an_error_ahead_is_raised_at_its_step() -> None:
    def failing(step: int) -> int:
        if step == 3:
            raise OSError("no such row")
        return step

    steps = read_ahead(failing, range(9), 2)
    assert [next(steps) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="no such row"):
        next(steps)


def check_same(batches: list[Batch], expected: list[Batch]) -> None:
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        assert rows([batch]) == rows([other])
        assert batch.global_rows == other.global_rows
        assert torch.equal(batch.inputs, other.inputs)
        assert torch.equal(batch.targets, other.targets)


class Labels(Dataset[Any]):
    def __init__(self, label: Any):
        self.label = label

    def __getitem__(self, row: int) -> Any:
        return torch.zeros(1, 2, 2, dtype=torch.uint8), self.label(row)


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        (float, torch.float64),
        (lambda row: torch.tensor([float(row)]), torch.float64),
        (lambda row: np.array([[row]], dtype=np.int32), torch.int64),
        (np.int32, torch.int64),
    ],
    ids=["number", "tensor of shape (1,)", "array of shape (1, 1)", "scalar of NumPy"],
)
def test_a_label_is_a_number_in_whatever_form_the_dataset_gives_it(label: Any, kind: torch.dtype) -> None:
    feed = loader_feed(Labels(label), np.arange(128), SampleOrder(128, 64, 0), tiny_settings(), rank())
    for batch in feed.batches(0, 0):
        assert (batch.targets.shape, batch.targets.dtype) == ((64,), kind)
        assert batch.targets.tolist() == batch.rows.tolist()
