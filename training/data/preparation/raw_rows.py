"""Read the shards of raw rows that the step `parquet` wrote."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from training.errors import DataError

_BATCH_ROWS = 8192


class ShardInput(Protocol):
    """The path of a shard's raw rows, and the number of rows that its transform takes at once."""

    @property
    def raw(self) -> str:
        """Path of a Parquet file."""

    @property
    def batch_rows(self) -> int:
        """Number of raw rows that the transform reads and writes at once, so that memory stays bounded.

        Row groups of part files end with a batch. The number therefore depends on the data alone, not on the machine:
        the same data give part files with the same bytes everywhere.
        """


def raw_batches(
    raw: str, columns: list[str] | None = None, rows: int = _BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Raw rows of one shard in batches of at most `rows` rows, with all columns or only `columns`.

    Raises :class:`DataError` when the file is damaged.
    """
    with _readable(raw), pq.ParquetFile(raw, page_checksum_verification=True) as file:
        yield from file.iter_batches(batch_size=rows, columns=columns)


def raw_table(raw: str) -> pa.Table:
    """All raw rows of one shard. Raises :class:`DataError` when the file is damaged."""
    with _readable(raw), pq.ParquetFile(raw, page_checksum_verification=True) as file:
        return file.read()


@contextmanager
def _readable(raw: str) -> Iterator[None]:
    try:
        yield
    except MemoryError:  # Arrow's own is an ArrowException, too
        raise
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an I/O error of the machine, not a damaged file
        raise DataError(
            f"{raw}: damaged since it was written ({error}). Run the same command again: that command writes the file "
            "again."
        ) from error
