"""Where images come from: one reader a kind of source, all giving the same raw rows.

A source is fetched first: its files lie complete and checked on this machine, with a digest of their content.
Then it is read in shards of raw rows (:data:`RAW_SCHEMA`), in an order that depends on content alone.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from training.records import SourceFiles

# `image` holds either an encoded file (JPEG, PNG ...: `height` is 0) or raw uint8 pixels, row by row with the
# channel last. `where` names the row for a person: a file, or a file and a row number.
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
    """Where a recipe's images come from."""

    def fetch(self, folder: Path) -> SourceFiles:
        """Bring all files into `folder`, whole and checked, or find them there; returns what lies there.

        Raises :class:`training.errors.DataError` for wrong bytes and
        :class:`training.errors.TransientError` for a network that may come back.
        """

    def count(self, files: SourceFiles, split: str) -> int:
        """Number of rows of `split` ("train", "test", or "" for rows that the source does not divide)."""

    def splits(self, files: SourceFiles) -> Sequence[str]:
        """The splits that the source has: ("train", "test") or ("",)."""

    def read(self, files: SourceFiles, split: str, rows: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Raw rows with the given row numbers, in that order, in batches of :data:`RAW_SCHEMA`."""
