"""Sources of images and tables: one reader per kind of source; all readers of images give raw rows of one schema.

A source is fetched first: then its files are complete and checked on this machine, with a digest of their content.
After that, the source is read in shards of raw rows, in an order that depends only on content. Raw rows of images have
the columns of :data:`RAW_SCHEMA`; those of a table have its typed columns, see :mod:`training.data.tables.typed_copy`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from training.records import SourceFiles

# `image` holds either an encoded file (JPEG, PNG ...: `height` is 0) or raw uint8 pixels, row by row with the
# channel last. `where` tells a person where the row comes from: a file, or a file and a row number.
RAW_SCHEMA = pa.schema(
    [
        pa.field("image", pa.binary(), nullable=False),
        pa.field("height", pa.int32(), nullable=False),
        pa.field("width", pa.int32(), nullable=False),
        pa.field("channels", pa.int32(), nullable=False),
        pa.field("label", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("where", pa.string(), nullable=False),
    ]
)


class Source(Protocol):
    """The interface of a source, from which a recipe's rows are fetched and read."""

    def fetch(self, folder: Path) -> SourceFiles:
        """Get all files and check them; returns their location and digest.

        Files that the source downloads, unpacks or derives are written to `folder`, and reused if they exist there.
        Raises :class:`training.errors.DataError` for wrong content and :class:`training.errors.TransientError` for a
        network failure that a retry may overcome.
        """

    def count(self, files: SourceFiles, split: str) -> int:
        """Number of rows of `split`: "train", "val" or "test", or "" when the source has no splits."""

    def splits(self, files: SourceFiles) -> Sequence[str]:
        """The splits of the source: ("train", "test"), ("train", "val", "test"), or ("",) when it has none."""

    def read(self, files: SourceFiles, split: str, rows: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Raw rows with the row numbers `rows`, in the order of `rows`, in batches of bounded size."""
