"""The sample order: every row once per epoch, equal for every number of workers, and accessible at any step."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from training.data import sample_order as order_module
from training.data.sample_order import AUGMENTATION, Permutation, SampleOrder, stream_key, uniforms

SEEDS = st.integers(0, 2**63 - 1)
EPOCHS = st.integers(0, 10_000)
ORDERS = st.builds(SampleOrder, st.integers(1, 2000), st.integers(1, 700), SEEDS)
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
IMPROBABLE = 1e-4  # fixed draws: a good generator always passes, a bad one fails by a wide margin


@given(n=st.integers(1, 5000), seed=SEEDS, epoch=EPOCHS)
def test_permutation_of_any_range(n: int, seed: int, epoch: int) -> None:
    image = Permutation(n, stream_key(seed, epoch))(np.arange(n))
    assert np.array_equal(np.sort(image), np.arange(n))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 15, 16, 17, 255, 256, 257])
def test_permutation_around_powers_of_two(n: int) -> None:
    for key in range(50):
        image = Permutation(n, np.uint64(key))(np.arange(n))
        assert np.array_equal(np.sort(image), np.arange(n))


@given(n=st.integers(1, 5000), seed=SEEDS, data=st.data())
def test_a_position_does_not_depend_on_the_others_asked(n: int, seed: int, data: st.DataObject) -> None:
    permutation = Permutation(n, stream_key(seed))
    position = data.draw(st.integers(0, n - 1))
    assert permutation(np.array([position]))[0] == permutation(np.arange(n))[position]


def test_asking_does_not_change_the_question() -> None:
    positions = np.arange(100)
    Permutation(100, stream_key(1))(positions)
    assert np.array_equal(positions, np.arange(100))


@given(order=ORDERS, epoch=EPOCHS, world_size=st.integers(1, 9))
def test_every_row_once_an_epoch_over_all_ranks(order: SampleOrder, epoch: int, world_size: int) -> None:
    order = replace(order, global_batch_size=max(order.global_batch_size, order.rows // 20))
    shares = [
        order.share(epoch, step, rank, world_size)
        for step in range(order.steps_per_epoch)
        for rank in range(world_size)
    ]
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(order.rows))


@given(order=ORDERS, epoch=EPOCHS, data=st.data())
def test_the_global_batch_is_the_same_for_every_world_size(
    order: SampleOrder, epoch: int, data: st.DataObject
) -> None:
    step = data.draw(st.integers(0, order.steps_per_epoch - 1))
    whole = order.global_batch(epoch, step)
    for world_size in (1, 2, 3, 8):
        shares = [order.share(epoch, step, rank, world_size) for rank in range(world_size)]
        assert np.array_equal(np.concatenate(shares), whole)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(order=ORDERS, epoch=EPOCHS, data=st.data())
def test_entering_at_a_step_is_skipping_the_steps_before(
    order: SampleOrder, epoch: int, data: st.DataObject
) -> None:
    step = data.draw(st.integers(0, order.steps_per_epoch - 1))
    epoch_rows = Permutation(order.rows, stream_key(order.seed, epoch, 1))(np.arange(order.rows))
    start, stop = order.bounds(step)
    assert np.array_equal(order.global_batch(epoch, step), epoch_rows[start:stop])


@contextmanager
def blocks_of(rows: int) -> Iterator[None]:
    """Compute orders in blocks of `rows` rows; by default a block is larger than any epoch in these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_module, "_BLOCK", rows)
        order_module._block.cache_clear()
        yield
    order_module._block.cache_clear()


@given(
    order=st.builds(SampleOrder, st.integers(1, 2000), st.integers(1, 150), SEEDS),
    epoch=EPOCHS,
    entered_at=st.floats(0, 1, exclude_max=True),
)
@example(order=SampleOrder(64 * 3 + 3, 16, 1), epoch=0, entered_at=0.9)  # the last block is incomplete
@example(order=SampleOrder(64 * 3 - 1, 64, 2), epoch=1, entered_at=0.5)  # a batch as long as a block
@example(order=SampleOrder(900, 100, 3), epoch=2, entered_at=0.5)  # a batch longer than a block
def test_blocks_do_not_show_in_the_order(order: SampleOrder, epoch: int, entered_at: float) -> None:
    epoch_rows = Permutation(order.rows, stream_key(order.seed, epoch, 1))(np.arange(order.rows))
    steps = range(order.steps_per_epoch)
    first = int(entered_at * len(steps))
    with blocks_of(64):
        batches = {step: order.global_batch(epoch, step) for step in [*steps[first:], *steps[:first]]}
    for step, batch in batches.items():
        start, stop = order.bounds(step)
        assert np.array_equal(batch, epoch_rows[start:stop])


def test_an_epoch_of_several_blocks_is_whole() -> None:
    order = SampleOrder(2 * order_module._BLOCK + 1007, 1000, seed=4)
    batches = [order.global_batch(3, step) for step in range(order.steps_per_epoch)]
    assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(order.rows))
    epoch_rows = Permutation(order.rows, stream_key(4, 3, 1))(np.arange(order.rows))
    assert np.array_equal(np.concatenate(batches), epoch_rows)


@given(order=ORDERS)
def test_steps_have_the_global_batch_size_but_for_the_last(order: SampleOrder) -> None:
    bounds = [order.bounds(step) for step in range(order.steps_per_epoch)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == order.rows
    for (start, stop), (following, _) in pairwise(bounds):
        assert (stop - start, stop) == (order.global_batch_size, following)
    last = bounds[-1][1] - bounds[-1][0]
    smallest = min(order.rows, max(2, order.global_batch_size // 4), order.global_batch_size)
    assert smallest <= last < order.global_batch_size + max(2, order.global_batch_size // 4)


@pytest.mark.parametrize(
    ("rows", "batch", "sizes"),
    [
        (128, 64, [64, 64]),
        (143, 64, [64, 79]),  # the remaining 15 rows are fewer than 64 / 4
        (144, 64, [64, 64, 16]),
        (3, 64, [3]),
        (9, 4, [4, 5]),
        (10, 4, [4, 4, 2]),
        (3, 1, [1, 1, 1]),
    ],
)
def test_a_small_rest_joins_the_step_before(rows: int, batch: int, sizes: list[int]) -> None:
    order = SampleOrder(rows, batch, seed=5)
    batches = [order.global_batch(0, step) for step in range(order.steps_per_epoch)]
    assert [len(step_rows) for step_rows in batches] == sizes
    assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(rows))


@given(rows=st.integers(1, 300), parts=st.integers(1, 9), each=st.integers(1, 9), epoch=EPOCHS)
def test_each_part_of_a_last_step_has_two_rows_where_the_batch_has_as_many(
    rows: int, parts: int, each: int, epoch: int
) -> None:
    order = SampleOrder(rows, parts * each, 0, parts)
    sizes = [len(part) for part in order.parts(epoch, order.steps_per_epoch - 1, parts)]
    assert min(sizes) >= min(2, each, rows // parts)
    assert sum(map(len, [order.global_batch(epoch, step) for step in range(order.steps_per_epoch)])) == rows


def test_seed_and_epoch_change_the_order() -> None:
    def rows(seed: int, epoch: int) -> tuple[int, ...]:
        return tuple(SampleOrder(1000, 100, seed).global_batch(epoch, 0))

    assert rows(0, 0) == rows(0, 0)
    assert len({rows(seed, epoch) for seed in range(10) for epoch in range(10)}) == 100


def test_every_row_is_as_likely_at_every_position() -> None:
    n, keys = 16, 4000
    counts = np.zeros((n, n))
    for epoch in range(keys):
        counts[np.arange(n), Permutation(n, stream_key(3, epoch, 1))(np.arange(n))] += 1
    assert stats.chisquare(counts, axis=1).pvalue.min() > IMPROBABLE
    assert stats.chisquare(counts, axis=0).pvalue.min() > IMPROBABLE


@pytest.mark.extended
@pytest.mark.parametrize("places", [(0, 1), (2, 7), (6, 7)])
def test_every_pair_of_rows_is_as_likely_at_two_positions(places: tuple[int, int]) -> None:
    n, keys = 8, 5000
    counts = np.zeros((n, n))
    for seed in range(keys):
        first, second = Permutation(n, stream_key(seed, 0, 1))(np.array(places))
        counts[first, second] += 1
    assert not counts.diagonal().any()
    assert stats.chisquare(counts[~np.eye(n, dtype=bool)]).pvalue > IMPROBABLE


def test_epochs_are_uncorrelated() -> None:
    epochs = [Permutation(2000, stream_key(0, epoch, 1))(np.arange(2000)) for epoch in range(20)]
    table = np.corrcoef([*epochs, np.arange(2000)])
    # 210 correlations, each with standard deviation 1 / sqrt(2000)
    assert np.abs(table[~np.eye(21, dtype=bool)]).max() < 4.5 / np.sqrt(2000)


@given(parts=st.lists(st.integers(-(2**70), 2**70), min_size=2, max_size=4))
def test_stream_keys_depend_on_order(parts: list[int]) -> None:
    key = stream_key(*parts)
    assert key == stream_key(*parts)
    assert (key == stream_key(*reversed(parts))) == (
        [part % 2**64 for part in parts] == [part % 2**64 for part in reversed(parts)]
    )


@given(seed=SEEDS, rows=st.lists(st.integers(0, 2**62), min_size=1, max_size=50), draws=st.integers(1, 6))
def test_uniforms_depend_on_the_row_alone(seed: int, rows: list[int], draws: int) -> None:
    key = stream_key(seed, 0, AUGMENTATION)
    together = uniforms(key, np.array(rows), draws)
    assert together.shape == (len(rows), draws)
    assert ((together >= 0) & (together < 1)).all()
    for row, drawn in zip(rows, together, strict=True):
        assert np.array_equal(uniforms(key, np.array([row]), draws)[0], drawn)
    fewer = uniforms(key, np.array(rows[::-1]), 1)
    assert np.array_equal(fewer[::-1, 0], together[:, 0])


def test_uniforms_are_uniform_and_independent() -> None:
    drawn = uniforms(stream_key(7, 3, AUGMENTATION), np.arange(20_000), 5)
    for column in drawn.T:
        assert stats.kstest(column, "uniform").pvalue > IMPROBABLE
    other_epoch = uniforms(stream_key(7, 4, AUGMENTATION), np.arange(20_000), 5)
    table = np.corrcoef(np.concatenate([drawn.T, other_epoch.T]))
    assert np.abs(table[~np.eye(10, dtype=bool)]).max() < 4.5 / np.sqrt(20_000)
    assert abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 4.5 / np.sqrt(20_000)
