"""Sample order: the rows that each training step uses, as a pure function of (seed, epoch, step).

:class:`Permutation` maps positions in an epoch to row numbers by format-preserving encryption: a balanced Feistel
network over the next power of two with an even exponent, applied again while its result is out of range (cycle
walking; J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002). No shuffled list is stored,
so step s costs the same after step s-1 as after a restart, and any process can compute it.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

_ROUNDS = 6
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# An array, because numpy warns about overflow in products of scalars.
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
    """A 64-bit key derived from several integers; it depends on their order."""
    key = np.zeros(1, dtype=np.uint64)
    for part in parts:
        key = mix(key + _GOLDEN + np.array([part % 2**64], dtype=np.uint64))
    return np.uint64(key[0])


def uniforms(key: np.uint64, rows: Rows, draws: int) -> npt.NDArray[np.float32]:
    """Random numbers in [0, 1), shape (len(rows), draws); a row's numbers depend on `key` and its row number only."""
    lanes = mix(key + _GOLDEN * (np.arange(draws, dtype=np.uint64) + np.uint64(1)))
    words = mix(mix(rows.astype(np.uint64)[:, None] + lanes[None, :]) + key)
    return ((words >> np.uint64(40)).astype(np.float32)) * np.float32(2.0**-24)


@dataclass(frozen=True)
class Permutation:
    """A permutation of range(n), keyed by `key`; it is computed only for the positions that a call passes."""

    n: int
    key: np.uint64

    def __call__(self, positions: Rows) -> Rows:
        """The numbers in range(n) to which the permutation maps `positions`."""
        half = np.uint64(max(1, (max(1, self.n - 1).bit_length() + 1) // 2))
        image = self._encipher(positions.astype(np.uint64), half)
        # The Feistel network permutes at most 4 n values, so cycle walking takes at most four iterations on average.
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
    """Sample order of one training: the rows of range(rows) that each step of an epoch uses, and each rank's share.

    Step s uses positions [s*B, (s+1)*B) of the epoch's permutation, where B is `global_batch_size`; the last step
    uses the remainder. A remainder smaller than max(2 * P, B // 4) is added to the step before it, so that no
    part gets fewer than two rows, the fewest for batch normalisation. P is `number_of_parts`, into which a step's rows
    are divided: workers, or virtual shards. Every row is used exactly once per epoch.
    """

    rows: int
    global_batch_size: int
    seed: int
    number_of_parts: int = 1

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimizer steps in one epoch."""
        full, rest = divmod(self.rows, self.global_batch_size)
        return max(1, full + (rest >= max(2 * self.number_of_parts, self.global_batch_size // 4)))

    def bounds(self, step: int) -> tuple[int, int]:
        """Positions [start, stop) in the epoch's permutation that step `step` uses (0 is an epoch's first step)."""
        start = step * self.global_batch_size
        last = step == self.steps_per_epoch - 1
        return start, self.rows if last else start + self.global_batch_size

    def global_batch(self, epoch: int, step: int) -> Rows:
        """Row numbers of one step, in order; the same for every world size."""
        start, stop = self.bounds(step)
        span = max(1, _BLOCK // self.global_batch_size) * self.global_batch_size
        first = start - start % span
        permutation = _permutation(self.rows, self.seed, epoch)
        # One batch more, because the epoch's last step may include the remainder.
        block = _block(permutation, first, min(self.rows, first + span + self.global_batch_size))
        return block[start - first : stop - first]

    def share(self, epoch: int, step: int, rank: int, world_size: int) -> Rows:
        """The part of :meth:`global_batch` that `rank` computes; part sizes differ by at most one row."""
        return _part(self.global_batch(epoch, step), rank, world_size)

    def parts(self, epoch: int, step: int, count: int) -> list[Rows]:
        """:meth:`global_batch` in `count` consecutive parts; part sizes differ by at most one row."""
        batch = self.global_batch(epoch, step)
        return [_part(batch, number, count) for number in range(count)]


def _part(rows: Rows, number: int, count: int) -> Rows:
    """Part `number` of `np.array_split(rows, count)`, without creating the others.

    `np.array_split` itself would take as long as a gather of the batch.
    """
    each, more = divmod(len(rows), count)
    start = number * each + min(number, more)
    return rows[start : start + each + (number < more)]


@lru_cache(maxsize=4)
def _permutation(rows: int, seed: int, epoch: int) -> Permutation:
    return Permutation(rows, stream_key(seed, epoch, _ORDER))


@lru_cache(maxsize=4)
def _block(permutation: Permutation, start: int, stop: int) -> Rows:
    """Row numbers of many steps at once, because numpy takes as long for a few elements as for some hundred."""
    rows = permutation(np.arange(start, stop, dtype=np.int64))
    rows.setflags(write=False)  # the cache returns the same array again
    return rows


def checksum(rows: Rows) -> int:
    """Checksum of a multiset of row numbers, independent of their order, below 2^24 * len(rows).

    Different multisets have different checksums, except by rare coincidence. Sums of checksums are exact in float64
    for up to 2^29 rows.
    """
    return int((mix(rows.astype(np.uint64) + _GOLDEN) >> np.uint64(40)).sum())


_BLOCK = 1 << 15
_ORDER = 1
AUGMENTATION = 2
