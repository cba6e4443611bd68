"""The source `npz`: images and labels in a NumPy archive. A module of the product."""

import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from training.data.sources.rows import checked_rows, cut, pixel_batch
from training.errors import DataError
from training.records import SourceFiles
from training.storage.files import digest_file


@dataclass(frozen=True)
class Npz:
    """The arrays `images` (rows, height, width, channels), uint8, and `labels` (rows,), text, of a file."""

    path: str | Path = ""

    def fetch(self, folder: Path) -> SourceFiles:
        """Check the file; nothing is copied to `folder`."""
        del folder
        file = Path(self.path)
        labels = _arrays(file)["labels"]
        return SourceFiles(
            kind="npz",
            root=str(file),
            origin=str(file),
            digest=digest_file(file),
            files=1,
            bytes=file.stat().st_size,
            classes=tuple(sorted(set(labels.tolist()))),
        )

    def count(self, files: SourceFiles, split: str) -> int:
        """Number of labels."""
        assert split == ""
        return len(_arrays(Path(files.root))["labels"])

    def splits(self, files: SourceFiles) -> Sequence[str]:
        """("",): the file has no splits."""
        del files
        return ("",)

    def read(self, files: SourceFiles, split: str, rows: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Raw rows with the row numbers `rows`."""
        assert split == ""
        arrays = _arrays(Path(files.root))
        images, labels = arrays["images"], arrays["labels"]
        numbers = checked_rows(rows, len(labels))
        for part in cut(np.full(len(numbers), images[0].nbytes)):
            chosen = numbers[part].tolist()
            where = [f"{files.root} row {row}" for row in chosen]
            yield pixel_batch(images[chosen], [str(labels[row]) for row in chosen], "", where)


def _arrays(file: Path) -> dict[str, Any]:
    """The arrays of the file. Raises :class:`DataError` if the file is missing or damaged."""
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as content:
            return {name: content[name] for name in ("images", "labels")}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"{file}: not a NumPy archive with images and labels ({error}).") from error
