"""Which row is trained on when: a pure function of (seed, epoch, step), entered anywhere at the same cost.

`shuffled(positions)` maps positions of an epoch to row numbers through a format-preserving permutation: a
balanced Feistel network over the next even power of two, walked until it lands inside the range (J. Black and
P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002). Nothing is stored and nothing is shuffled, so
step s costs the same whether it is entered from step s-1 or after a crash, and no matter who computes it.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

_ROUNDS = 6
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# An array, as numpy warns of wrap-around in products of scalars.
_ROUND_KEYS = np.arange(1, _ROUNDS + 1, dtype=np.uint64) * _GOLDEN


def mix(words: _Words) -> _Words:
    """Finaliser of SplitMix64 (Steele, Lea, Flood 2014): 64 bits in, 64 well-mixed bits out, elementwise."""
    words = words ^ (words >> np.uint64(30))
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def stream_key(*parts: int) -> np.uint64:
    """One 64-bit key out of several integers, order mattering."""
    key = np.zeros(1, dtype=np.uint64)
    for part in parts:
        key = mix(key + _GOLDEN + np.array([part % 2**64], dtype=np.uint64))
    return np.uint64(key[0])


def uniforms(key: np.uint64, rows: Rows, draws: int) -> npt.NDArray[np.float32]:
    """Numbers in [0, 1) of shape (len(rows), draws) that depend on `key` and each row number alone."""
    lanes = mix(key + _GOLDEN * (np.arange(draws, dtype=np.uint64) + np.uint64(1)))
    words = mix(mix(rows.astype(np.uint64)[:, None] + lanes[None, :]) + key)
    return ((words >> np.uint64(40)).astype(np.float32)) * np.float32(2.0**-24)


@dataclass(frozen=True)
class Permutation:
    """A permutation of range(n), keyed by `key`, evaluated only where it is asked."""

    n: int
    key: np.uint64

    def __call__(self, positions: Rows) -> Rows:
        """Images of `positions`, each in range(n)."""
        half = np.uint64(max(1, (max(1, self.n - 1).bit_length() + 1) // 2))
        image = self._encipher(positions.astype(np.uint64), half)
        # The domain is less than 4 n wide, so a walk takes four turns on average at the most.
        while (outside := image >= np.uint64(self.n)).any():
            image[outside] = self._encipher(image[outside], half)
        return image.astype(np.int64)

    def _encipher(self, words: _Words, half: np.uint64) -> _Words:
        mask = (np.uint64(1) << half) - np.uint64(1)
        left, right = words >> half, words & mask
        for turn in range(_ROUNDS):
            scramble = mix(right + (self.key + _ROUND_KEYS[turn : turn + 1]))
            scramble &= mask
            scramble ^= left
            left, right = right, scramble
        return (left << half) | right


@dataclass(frozen=True)
class SampleOrder:
    """The steps of one training: which rows of range(rows) step s of an epoch takes, and who computes which.

    Step s takes positions [s*B, (s+1)*B) of the epoch's permutation, B being `global_batch_size`; the last step
    takes what is left. A rest smaller than B/4 joins the step before it, so that no worker is left with a row or
    two, which batch normalisation can't use. Every row is used exactly once an epoch.
    """

    rows: int
    global_batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch."""
        full, rest = divmod(self.rows, self.global_batch_size)
        return max(1, full + (rest >= max(2, self.global_batch_size // 4)))

    def bounds(self, step: int) -> tuple[int, int]:
        """Positions [start, stop) of step `step` (0 for an epoch's first)."""
        start = step * self.global_batch_size
        last = step == self.steps_per_epoch - 1
        return start, self.rows if last else start + self.global_batch_size

    def global_batch(self, epoch: int, step: int) -> Rows:
        """Row numbers of one step, in order; the same for every world size."""
        start, stop = self.bounds(step)
        span = max(1, _BLOCK // self.global_batch_size) * self.global_batch_size
        first = start - start % span
        permutation = _permutation(self.rows, self.seed, epoch)
        # A batch more, as the epoch's last step may take the rest along.
        block = _block(permutation, first, min(self.rows, first + span + self.global_batch_size))
        return block[start - first : stop - first]

    def share(self, epoch: int, step: int, rank: int, world_size: int) -> Rows:
        """The part of :meth:`global_batch` that `rank` computes; parts differ by one row at most."""
        return _part(self.global_batch(epoch, step), rank, world_size)

    def parts(self, epoch: int, step: int, count: int) -> list[Rows]:
        """:meth:`global_batch` in `count` consecutive parts; they differ by one row at most."""
        batch = self.global_batch(epoch, step)
        return [_part(batch, number, count) for number in range(count)]


def _part(rows: Rows, number: int, count: int) -> Rows:
    """One of the parts that `np.array_split` would give, without making the others: it takes as long as a gather."""
    each, more = divmod(len(rows), count)
    start = number * each + min(number, more)
    return rows[start : start + each + (number < more)]


@lru_cache(maxsize=4)
def _permutation(rows: int, seed: int, epoch: int) -> Permutation:
    return Permutation(rows, stream_key(seed, epoch, _ORDER))


@lru_cache(maxsize=4)
def _block(permutation: Permutation, start: int, stop: int) -> Rows:
    """Rows of many steps at once: numpy takes as long for a small array as for one of some hundred elements."""
    rows = permutation(np.arange(start, stop, dtype=np.int64))
    rows.setflags(write=False)  # it is handed out again
    return rows


def checksum(rows: Rows) -> int:
    """A number below 2^24 * len(rows) that tells one multiset of rows from another, whatever their order.

    Sums of it stay exact as float64 for up to 2^29 rows.
    """
    return int((mix(rows.astype(np.uint64) + _GOLDEN) >> np.uint64(40)).sum())


_BLOCK = 1 << 15
_ORDER = 1
AUGMENTATION = 2
