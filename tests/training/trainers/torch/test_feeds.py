"""Feeds deliver every training row to some rank once per epoch, and no validation row."""

from typing import Any

import numpy as np
import pytest
import torch
from small_runs import tiny_settings

from training.data.dataset import Columns, is_validation, open_columns
from training.data.sample_order import SampleOrder
from training.errors import SettingError
from training.records import DatasetVersion
from training.trainers.ranks import Ranks
from training.trainers.torch.feeds import Batch, Feed, MemoryFeed, columns_dataset, loader_feed, training_rows


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


def loader(columns: Columns, ranks: Ranks) -> Feed:
    settings = tiny_settings()
    return loader_feed(columns_dataset(columns), learn_of(columns), settings, ranks)


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
        assert sorted(row for one in batches for row in rows(one)) == sorted(learn_of(columns))
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


def test_a_loader_brings_every_training_row_in_an_order_of_the_epoch(columns: Columns) -> None:
    feed = loader(columns, rank())
    epochs = [list(feed.batches(epoch, 0)) for epoch in range(2)]
    assert not feed.exact
    for batches in epochs:
        assert len(batches) == feed.steps_per_epoch
        assert sorted(rows(batches)) == sorted(learn_of(columns))
        for batch in batches:
            check_content(columns, batch)
            assert batch.global_rows == len(batch.targets)
    assert rows(epochs[0]) != rows(epochs[1])
    assert rows(list(feed.batches(0, 0))) == rows(epochs[0])


def test_a_loader_shares_rows_among_ranks(columns: Columns) -> None:
    batches = [list(loader(columns, rank(number, 2)).batches(0, 0)) for number in range(2)]
    found = [set(rows(one)) for one in batches]
    assert found[0] | found[1] == set(learn_of(columns))
    assert len(found[0] & found[1]) <= 1  # the sampler repeats a row to give ranks equal numbers
    for first, second in zip(*batches, strict=True):
        assert first.global_rows == second.global_rows == len(first.targets) + len(second.targets)


def test_a_loader_skips_to_a_step(columns: Columns) -> None:
    feed = loader(columns, rank())
    whole = list(feed.batches(2, 0))
    assert rows(list(feed.batches(2, 2))) == rows(whole[2:])
