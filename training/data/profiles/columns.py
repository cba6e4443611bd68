"""The profile of one column: quantiles of numbers and dates, shares of categories."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from training.data.tables.encoding import encoded_values
from training.profile_records import SHARES, SIZE_SHARES, ColumnProfile
from training.records import ColumnKind

Numbers = npt.NDArray[np.float64]

_SAMPLE = 20_000  # values of which quantiles are computed; the error of their shares is then some 0.004
_LISTED = 100  # categories
_DIGITS = 7  # significant ones, about those of a 32-bit number


def column_profile(chunks: Sequence[pa.ChunkedArray], name: str, kind: ColumnKind) -> ColumnProfile:
    """The profile of a table's column, given as the typed values of each part file."""
    if kind in ("category", "boolean"):
        return _of_categories(chunks, name, kind)
    return number_profile([encoded_values(values, kind) for values in chunks], name, kind)


def number_profile(chunks: Sequence[Numbers], name: str, kind: ColumnKind = "number") -> ColumnProfile:
    """The profile of numbers, of which NaN is a missing value."""
    rows = sum(map(len, chunks))
    present = np.concatenate([numbers[~np.isnan(numbers)] for numbers in chunks]) if chunks else np.empty(0)
    if not len(present):
        return ColumnProfile(name=name, kind=kind, missing=1.0 if rows else 0.0)
    sample = _sampled(present)
    quantiles = np.quantile(sample, SHARES)
    quantiles[[0, -1]] = present.min(), present.max()
    sizes = np.abs(sample[sample != 0])
    return ColumnProfile(
        name=name,
        kind=kind,
        missing=1 - len(present) / rows,
        quantiles=_rounded(quantiles) if kind == "number" else tuple(quantiles.tolist()),
        sizes=_rounded(np.quantile(sizes, SIZE_SHARES)) if len(sizes) else (),
        zeros=float(np.mean(present == 0)),
    )


def shares_profile(counts: Counter[str], missing: int, name: str, kind: ColumnKind) -> ColumnProfile:
    """The profile of values that occur `counts` times each; `missing` rows have none."""
    present = counts.total()
    listed = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:_LISTED]
    return ColumnProfile(
        name=name,
        kind=kind,
        missing=missing / (present + missing) if missing else 0.0,
        categories={value: count / present for value, count in listed},
        distinct=len(counts),
    )


def _of_categories(chunks: Sequence[pa.ChunkedArray], name: str, kind: ColumnKind) -> ColumnProfile:
    counts: Counter[str] = Counter()
    for values in chunks:
        for entry in pc.value_counts(values.drop_null()).to_pylist():
            value = entry["values"]
            counts[value if isinstance(value, str) else str(value).lower()] += entry["counts"]
    return shares_profile(counts, sum(values.null_count for values in chunks), name, kind)


def _sampled(values: Numbers) -> Numbers:
    """All values, or a random part of many; the same values give the same part."""
    if len(values) <= _SAMPLE:
        return values
    return values[np.random.default_rng(0).integers(0, len(values), _SAMPLE)]


def _rounded(values: Numbers) -> tuple[float, ...]:
    """`values` with seven significant digits, so that manifests stay small."""
    return tuple(float(f"{value:.{_DIGITS}g}") for value in values.tolist())
