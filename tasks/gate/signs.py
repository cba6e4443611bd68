"""Sums of paired differences under random signs; a row keeps its signs in all looks of a reign.

A flip assigns a random sign to every row; there are :data:`FLIPS` flips. Flipping the sign of a row's difference
exchanges the two models on that row. A row has the same signs in every look, so the sums of different looks depend on
each other as the looks themselves do: the dependence is measured, not assumed. The signs are derived from the digests
of reference and row, so every home computes the same signs.
"""

import hashlib

import numpy as np
import numpy.typing as npt

FLIPS = 20_000
# Smallest p-value of a test by sign flips: the observed signs count as one of the flips.
LEAST_P = 1 / (FLIPS + 1)
_BYTES = FLIPS // 8
_CHUNK = 128  # rows at a time: 2.5 MB of unpacked bits, 20 MB as float64
# Scores (sums in standard deviations) that are closer count as equal. Rounding makes equal sums of a million
# differences differ by up to 1e-10: a tie must neither be missed nor be taken for a higher score.
TIE = 1e-9

Digests = npt.NDArray[np.uint64]
Differences = npt.NDArray[np.float64]


def flipped_sums(reference: str, digests: Digests, differences: Differences) -> npt.NDArray[np.float64]:
    """Sums of `differences`, shape (FLIPS,): sum b uses the signs of flip b. Rows with difference 0 are skipped.

    Differences that all have the same absolute value are added as integers, so that equal sums are exactly equal.
    """
    used = np.flatnonzero(differences)
    sizes = np.unique(np.abs(differences[used]))
    whole = len(sizes) == 1
    sums = np.zeros(FLIPS, np.float64)
    for start in range(0, len(used), _CHUNK):
        chosen = used[start : start + _CHUNK]
        bits = _bits(reference, digests[chosen])
        if whole:
            bits ^= (differences[chosen] < 0)[:, None]
            sums += 2.0 * bits.sum(axis=0, dtype=np.uint8) - len(chosen)
        else:
            values = differences[chosen]
            sums += 2.0 * (values @ bits.astype(np.float64)) - float(values.sum())
    return sums * sizes[0] if whole else sums


def size_of(differences: Differences) -> float:
    """Standard deviation of the sum of `differences` under random signs: the square root of the sum of squares."""
    return float(np.linalg.norm(differences))


def _bits(reference: str, digests: Digests) -> npt.NDArray[np.uint8]:
    """Signs of the rows, shape (rows, FLIPS): 1 keeps the sign of the difference, 0 flips it."""
    key = hashlib.sha256(reference.encode()).digest()
    drawn = b"".join(hashlib.shake_128(key + digest.tobytes()).digest(_BYTES) for digest in digests)
    return np.unpackbits(np.frombuffer(drawn, np.uint8).reshape(len(digests), _BYTES), axis=1)
