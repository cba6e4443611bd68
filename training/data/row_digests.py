"""Digests of a dataset version's rows, to find rows of one version in another.

Each row has two or three digests. Of an image, `digest` is of its pixels before they were converted and resized, and
`source` of the source's row before decoding: `digest` still agrees when a file was stored in another format, `source`
when a library decodes it to other pixels. Of a row of a table, `digest` is of its group if the source has groups, else
of its key or its features; `key` is of its key, if rows have keys, and `source` is of its features. Two rows are the
same when one of these digests agrees. So all rows of a group count as the same; a changed row is found by its key, and
a row that got a key later by its features. A digest here is the first 8 bytes of a sha256.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from training.data.dataset import binary_to_numpy
from training.errors import DataError
from training.records import ColumnKind, DatasetVersion, Split

Digests = npt.NDArray[np.uint64]


def known_rows(version: DatasetVersion, split: Split) -> Digests:
    """Sorted digests of all kinds of all rows of a split, at most 24 bytes per row.

    An older dataset version, without the column `source`, has digests of pixels only. Raises :class:`DataError` when a
    part file can't be read.
    """
    kinds = _digests(version, split)
    digests: Digests = np.unique(np.concatenate(list(kinds.values())))
    return digests


def row_digests(version: DatasetVersion, split: Split) -> Digests:
    """The digests `digest` of a split (of pixels, features or group), in row order.

    Raises :class:`DataError` when a part file can't be read.
    """
    return _digests(version, split)["digest"]


def rows_among(
    version: DatasetVersion, split: Split, known: Digests, columns: Mapping[str, ColumnKind] | None = None
) -> npt.NDArray[np.bool_]:
    """Mask of the rows of a split that have a digest in `known`, which :func:`known_rows` of another version gives.

    `columns` are those that two tables have in common, if their columns differ: rows are also found by their content
    in these columns alone, if `known` has it.

    Raises :class:`DataError` when a part file can't be read.
    """
    kinds = _digests(version, split)
    among = np.zeros(version.rows(split), bool)
    for digests in kinds.values():
        among |= np.isin(digests, known)
    if columns:
        among |= np.isin(contents(version, split, columns), known)
    return among


def contents(version: DatasetVersion, split: Split, columns: Mapping[str, ColumnKind]) -> Digests:
    """The digests of the content of a split's rows in these columns alone, in row order.

    Raises :class:`DataError` when a part file can't be read.
    """
    parts = part_tables(version, split, feature_names(columns))
    return np.concatenate([np.empty(0, np.uint64), *(content_in(part, columns) for part in parts)])


def has_identity(version: DatasetVersion) -> bool:
    """Whether the rows of a table are known by a key or by their group, which other columns leave as they are."""
    digests = _digests(version, "test")
    return bool(version.key) or not np.array_equal(digests["digest"], digests["source"])


def feature_names(columns: Iterable[str]) -> list[str]:
    """The names of features in part files."""
    from training.data.tables.values import FEATURE

    return [f"{FEATURE}{name}" for name in columns]


def content_in(table: pa.Table, columns: Mapping[str, ColumnKind]) -> Digests:
    """The digests of the content of a table's rows in these of its columns alone."""
    from training.data.tables.shards import feature_digests

    batches = table.combine_chunks().to_batches()
    parts = [first_halves(feature_digests(batch, columns)) for batch in batches]
    return np.concatenate([np.empty(0, np.uint64), *parts])


def part_tables(version: DatasetVersion, split: Split, columns: list[str]) -> Iterator[pa.Table]:
    """Those of `columns` that a split's part files have, one table for each file.

    Raises :class:`DataError` when a part file can't be read.
    """
    for part in version.parts[split]:
        path = Path(version.path) / part.path
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                yield file.read([name for name in columns if name in file.schema_arrow.names])
        except MemoryError:  # Arrow's own is an ArrowException, too
            raise
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: can't be read ({error}).") from error


def first_halves(digests: pa.ChunkedArray | pa.Array) -> Digests:
    """The first 8 bytes of each digest of 16 bytes."""
    column = digests if isinstance(digests, pa.ChunkedArray) else pa.chunked_array([digests])
    halves: Digests = binary_to_numpy(column, np.uint64).reshape(-1, 2)[:, 0]
    return halves


def _digests(version: DatasetVersion, split: Split) -> dict[str, Digests]:
    digests: dict[str, list[Digests]] = {}
    for table in part_tables(version, split, ["digest", "key", "source"]):
        for name in table.column_names:
            digests.setdefault(name, []).append(first_halves(table[name]))
    return {name: np.concatenate(parts) for name, parts in digests.items()}
