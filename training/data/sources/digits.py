"""The source of scikit-learn's handwritten digits: 1,797 grey scans of 8x8 pixels, installed with Evergreen."""

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from training.data.sources.installed import content_of, installed_file
from training.data.sources.rows import checked_rows, cut, pixel_batch
from training.errors import DataError
from training.records import SourceFiles

_FILE = "digits.csv.gz"
_SIDE = 8
_FULL = 16  # largest value: a scan counts the dark pixels in 4x4 blocks
CLASSES = tuple("0123456789")


@dataclass(frozen=True)
class Digits:
    """The 1,797 grey images of 8 x 8 pixels that scikit-learn installs: digits in ten classes, without splits.

    Pixels of 0 to 16 are scaled to 0 to 255.
    """

    classes: tuple[str, ...] = CLASSES

    def fetch(self, folder: Path) -> SourceFiles:
        """Find and check the file that is installed with scikit-learn; nothing is copied to `folder`."""
        del folder
        file = installed_file(_FILE)
        digest = hashlib.sha256(content_of(file)).hexdigest()
        return SourceFiles(
            kind="digits",
            root=str(file.parent),
            origin="scikit-learn's digits",
            digest=digest,
            files=1,
            bytes=file.stat().st_size,
            classes=self.classes,
        )

    def count(self, files: SourceFiles, split: str) -> int:
        """Number of rows: 1,797, unless scikit-learn changes its file."""
        _check_split(split)
        return len(_table(files))

    def splits(self, files: SourceFiles) -> Sequence[str]:
        """("",): the digits have no splits."""
        del files
        return ("",)

    def read(self, files: SourceFiles, split: str, rows: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Raw rows with the row numbers `rows`; rows are numbered as in the file."""
        _check_split(split)
        table = _table(files)
        numbers = checked_rows(rows, len(table))
        pixels = np.rint(table[:, :-1] * (255 / _FULL)).astype(np.uint8).reshape(-1, _SIDE, _SIDE, 1)
        for part in cut(np.full(len(numbers), _SIDE * _SIDE)):
            chosen = numbers[part].tolist()
            yield pixel_batch(
                pixels[chosen],
                [files.classes[table[row, -1]] for row in chosen],
                "",
                [f"{_FILE} row {row}" for row in chosen],
            )


def _check_split(split: str) -> None:
    assert split == "", f"the digits have no split {split!r}"


def _table(files: SourceFiles) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
    """The file's table: each row has 64 pixels (0..16) and a label.

    Raises :class:`DataError` when the file is not such a table.
    """
    file = Path(files.root) / _FILE
    try:
        # Read as float, because the numbers have decimals, all of which are zero.
        values = np.loadtxt(io.BytesIO(content_of(file)), delimiter=",", ndmin=2)
    except ValueError as error:
        raise DataError(f"{file}: not a table of numbers ({error}). Install scikit-learn again.") from error
    pixels, labels = values[:, :-1], values[:, -1]
    known = pixels.shape[1] == _SIDE * _SIDE and ((pixels >= 0) & (pixels <= _FULL)).all()
    if not known or not ((labels >= 0) & (labels < len(files.classes))).all():
        raise DataError(f"{file}: not the digits that Evergreen knows. Install scikit-learn again.")
    return values.astype(np.int64)
