"""The balanced order: equally many rows of each class in each step, each class in passes over all of its rows."""

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data.class_balance import BalancedOrder, balanced_order, check_balance
from training.data.sample_order import SampleOrder
from training.errors import SettingError

NAMES = ("class", "subject")


def order(many: int, few: int, each: int, seed: int = 0) -> BalancedOrder:
    """An order of rows of two classes, whose rows alternate as long as both have some."""
    targets = np.array(sorted([0] * many + [1] * few), np.int64)
    mixed = np.random.default_rng(0).permutation(targets)
    return balanced_order(mixed, NAMES, SampleOrder(len(mixed), 2 * each, seed))


def steps(balanced: BalancedOrder, count: int) -> list[np.ndarray]:
    """The rows of the first `count` steps, over epochs."""
    return [balanced.global_batch(*divmod(step, balanced.steps_per_epoch)) for step in range(count)]


@given(
    many=st.integers(1, 60), few=st.integers(1, 60), each=st.integers(1, 16), seed=st.integers(0, 2**63 - 1)
)
def test_a_class_is_used_in_whole_passes(many: int, few: int, each: int, seed: int) -> None:
    balanced = order(many, few, each, seed)
    taken = np.stack(steps(balanced, 20))
    for number, size in enumerate((many, few)):
        stream = taken[:, number::2].reshape(-1)
        passes = [stream[at : at + size] for at in range(0, len(stream) - size + 1, size)]
        assert all(np.array_equal(np.sort(each_pass), balanced.classes[number]) for each_pass in passes)


def test_passes_differ_in_their_order() -> None:
    stream = np.stack(steps(order(40, 40, 10), 12))[:, 0::2].reshape(-1)
    assert len({tuple(stream[at : at + 40]) for at in range(0, 120, 40)}) == 3


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_each_worker_has_equally_many_rows_of_each_class(world_size: int) -> None:
    balanced = order(70, 5, 8)
    shares = [balanced.share(3, 1, rank, world_size) for rank in range(world_size)]
    assert np.array_equal(np.concatenate(shares), balanced.global_batch(3, 1))
    for share in shares:
        counts = Counter(int(np.isin(row, balanced.classes[1])) for row in share)
        assert counts[0] == counts[1] == 8 // world_size


def test_an_epoch_has_as_many_steps_as_without_balance_and_all_steps_are_full() -> None:
    balanced, plain = order(70, 5, 8), SampleOrder(75, 16, 0)
    assert balanced.steps_per_epoch == plain.steps_per_epoch == 5
    assert {stop - start for start, stop in map(balanced.bounds, range(5))} == {16}


@pytest.mark.parametrize(
    ("targets", "names", "size", "message"),
    [
        ([0, 1, 0], (), 2, "training.balance_classes: the rows have no classes"),
        ([0, 1, 0], NAMES, 5, "5 rows do not divide among 2 classes"),
        ([0, 0, 0], NAMES, 4, "no row to learn from has the class 'subject'"),
    ],
)
def test_what_can_not_be_balanced(
    targets: list[int], names: tuple[str, ...], size: int, message: str
) -> None:
    with pytest.raises(SettingError, match=re.escape(message)):
        balanced_order(np.array(targets), names, SampleOrder(len(targets), size, 0))


def test_a_worker_without_rows_of_each_class_is_refused_before_training() -> None:
    check_balance(NAMES, 8, workers=4)
    with pytest.raises(
        SettingError, match=r"6 rows do not divide among 2 classes on 2 workers, .*multiple of 4"
    ):
        check_balance(NAMES, 6, workers=2)
