"""Sample order of a training in which each step has the same number of rows of every class.

The rows of a class form a stream: passes over all rows of the class, each in an order of its own, one after the other.
Each step takes the next rows of every stream. So the rows of a small class are used more often than others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from training.data.sample_order import Permutation, Rows, SampleOrder, stream_key
from training.errors import SettingError

_BALANCED = 7  # stream of random numbers, see training.data.sample_order


@dataclass(frozen=True)
class BalancedOrder(SampleOrder):
    """The rows of each step, as :class:`SampleOrder`; every step has `global_batch_size` rows.

    An epoch has as many steps as without balance. `classes` holds, for each class, the rows of this class as numbers in
    range(rows).
    """

    classes: tuple[Rows, ...] = field(default=(), compare=False)

    def bounds(self, step: int) -> tuple[int, int]:
        """First and last + 1 of the rows of step `step`, counted from the epoch's first row."""
        start = step * self.global_batch_size
        return start, start + self.global_batch_size

    def global_batch(self, epoch: int, step: int) -> Rows:
        """Row numbers of one step; the classes alternate, so parts of equal size have equally many rows of each."""
        each = self.global_batch_size // len(self.classes)
        first = (epoch * self.steps_per_epoch + step) * each
        positions = np.arange(first, first + each, dtype=np.int64)
        streams = [self._of_class(number, positions) for number in range(len(self.classes))]
        return np.stack(streams, axis=1).reshape(-1)

    def _of_class(self, number: int, positions: Rows) -> Rows:
        """The rows at `positions` of the stream of a class."""
        rows = self.classes[number]
        passes, within = np.divmod(positions, len(rows))
        selected = np.empty_like(positions)
        for number_of_pass in np.unique(passes):
            here = passes == number_of_pass
            selected[here] = rows[
                _permutation(len(rows), self.seed, int(number_of_pass), number)(within[here])
            ]
        return selected


@lru_cache(maxsize=64)
def _permutation(rows: int, seed: int, number_of_pass: int, number_of_class: int) -> Permutation:
    return Permutation(rows, stream_key(seed, number_of_pass, number_of_class, _BALANCED))


def check_balance(names: Sequence[str], global_batch_size: int, workers: int = 1) -> None:
    """Raise :class:`SettingError` for rows without classes, or a batch that can't be balanced on each worker."""
    if not names:
        raise SettingError(
            "training.balance_classes: the rows have no classes; remove the setting, or use a problem with classes"
        )
    unit = len(names) * workers
    if global_batch_size % unit:
        among = f"{len(names)} classes" + (f" on {workers} workers" if workers > 1 else "")
        raise SettingError(
            f"training.global_batch_size: {global_batch_size} rows do not divide among {among}, as "
            f"training.balance_classes demands; use a multiple of {unit}"
        )


def balanced_order(targets: npt.NDArray[np.int64], names: Sequence[str], order: SampleOrder) -> BalancedOrder:
    """The order of rows with these classes, with the number of steps of `order`; `names` are the names of the classes.

    Raises :class:`SettingError` for a class without rows, and as :func:`check_balance` does.
    """
    check_balance(names, order.global_batch_size)
    classes = tuple(np.flatnonzero(targets == number) for number in range(len(names)))
    empty = [name for name, rows in zip(names, classes, strict=True) if not len(rows)]
    if empty:
        raise SettingError(
            f"training.balance_classes: no row to learn from has the class {', '.join(map(repr, empty))}; add rows, "
            "or remove the setting"
        )
    return BalancedOrder(order.rows, order.global_batch_size, order.seed, order.number_of_parts, classes)
