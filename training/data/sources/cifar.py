"""The source CIFAR-10, in its binary version. Evergreen never loads the Python version, which consists of pickles.

In: the six files, or a download. Out: raw rows of 32x32x3 pixels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from filelock import FileLock

from training.data.sources.archives import unpack
from training.data.sources.download import fetch_any
from training.data.sources.places import check_unchanged, given_path, write_checksums
from training.data.sources.rows import Numbers, UInt8, checked_rows, cut, pixel_batch
from training.data.sources.wording import counted
from training.errors import DataError
from training.records import SourceFiles
from training.storage.files import digest_file, digest_json

FILES = {"train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test": ("test_batch.bin",)}
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# The first address is the authors' own, which now redirects to the second, on another host.
URLS = (
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "https://cave.cs.toronto.edu/kriz/cifar-10-binary.tar.gz",
)
SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
SIZE = 170_052_171

_FOLDER = "cifar-10-batches-bin"
_SIDE, _CHANNELS = 32, 3
_RECORD = 1 + _SIDE * _SIDE * _CHANNELS  # bytes: a label, then the red, green and blue planes


@dataclass(frozen=True)
class Cifar10:
    """CIFAR-10; `path` is a folder with the .bin files. Without `path`, the files are downloaded from `urls`."""

    path: str | Path | None = None
    classes: tuple[str, ...] = CLASSES
    urls: tuple[str, ...] = URLS
    sha256: str = SHA256
    size: int | None = SIZE

    def fetch(self, folder: Path) -> SourceFiles:
        """Find or download the six files, and check their lengths and labels."""
        if self.path is None:
            root, origin = self._downloaded(folder), self.urls[0]
        else:
            path = given_path(self.path, "CIFAR-10")
            root, origin = locate(path) or path, str(path)
        files = [(split, file) for split in FILES for file in _files(root, split)]
        for _, file in files:
            _check_labels(file, self.classes)
        digests = {file.name: digest_file(file) for _, file in files}
        check_unchanged(root, digests)
        return SourceFiles(
            kind="cifar",
            root=str(root),
            origin=origin,
            digest=digest_json([[split, digests[file.name], file.stat().st_size] for split, file in files]),
            files=len(files),
            bytes=sum(file.stat().st_size for _, file in files),
            classes=self.classes,
        )

    def count(self, files: SourceFiles, split: str) -> int:
        """Number of records in the files of `split`."""
        return sum(len(_open(file)) for file in _files(Path(files.root), split))

    def splits(self, files: SourceFiles) -> Sequence[str]:
        """("train", "test"): CIFAR-10 always has both splits."""
        del files
        return tuple(FILES)

    def read(self, files: SourceFiles, split: str, rows: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Raw rows with the row numbers `rows`; rows are numbered through the files of the split, in file order."""
        batches = [_open(file) for file in _files(Path(files.root), split)]
        ends = np.cumsum([len(batch) for batch in batches])
        numbers = checked_rows(rows, int(ends[-1]))
        for part in cut(np.full(len(numbers), _RECORD)):
            which = np.searchsorted(ends, numbers[part], side="right")
            within = numbers[part] - (ends - [len(batch) for batch in batches])[which]
            records = _take(batches, which, within)
            planes = records[:, 1:].reshape(-1, _CHANNELS, _SIDE, _SIDE)
            yield pixel_batch(
                planes.transpose(0, 2, 3, 1),
                [files.classes[label] for label in records[:, 0].tolist()],
                split,
                [
                    f"{FILES[split][file]} row {row}"
                    for file, row in zip(which.tolist(), within.tolist(), strict=True)
                ],
            )

    def _downloaded(self, folder: Path) -> Path:
        unpacked = folder / f"cifar-10-{self.sha256[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{unpacked}.lock"):
            self._fetch_once(folder, unpacked)
        return locate(unpacked) or unpacked

    def _fetch_once(self, folder: Path, unpacked: Path) -> None:
        if not unpacked.exists():
            archive = folder / "download" / "cifar-10-binary.tar.gz"
            fetch_any(self.urls, archive, size=self.size, sha256=self.sha256)
            unpack(archive, unpacked)
            root = locate(unpacked) or unpacked
            write_checksums(
                root, {file.name: digest_file(file) for split in FILES for file in _files(root, split)}
            )
            archive.unlink(missing_ok=True)


def locate(folder: Path) -> Path | None:
    """The folder, `folder` or `cifar-10-batches-bin` in it, that holds any of CIFAR-10's .bin files; or None."""
    names = [name for names in FILES.values() for name in names]
    return next(
        (at for at in (folder, folder / _FOLDER) if any((at / name).is_file() for name in names)), None
    )


def is_pickled(folder: Path) -> bool:
    """Whether `folder` holds the Python version, which can't be read without running code that it may contain."""
    return any((at / "data_batch_1").is_file() for at in (folder, folder / "cifar-10-batches-py"))


def _files(root: Path, split: str) -> list[Path]:
    files = [root / name for name in FILES[split]]
    for file in files:
        if not file.is_file():
            raise DataError(f"{file}: missing. CIFAR-10's binary version has six .bin files; fetch it again.")
    return files


def _open(file: Path) -> UInt8:
    """The records of a file, memory-mapped, of shape (rows, 3073). Raises DataError for a partial record."""
    size = file.stat().st_size
    if size == 0 or size % _RECORD:
        raise DataError(
            f"{file}: has {counted(size, 'byte')}, which is no whole number of {_RECORD:,}-byte records: "
            "cut short or damaged. Fetch it again."
        )
    return np.memmap(file, np.uint8, mode="r", shape=(size // _RECORD, _RECORD))


def _check_labels(file: Path, classes: tuple[str, ...]) -> None:
    labels = _open(file)[:, 0]
    row = int(labels.argmax())
    if labels[row] >= len(classes):
        raise DataError(
            f"{file} row {row}: label {labels[row]}, but there are {len(classes)} classes: the file is "
            "damaged or not CIFAR-10. Fetch it again."
        )


def _take(batches: Sequence[UInt8], which: Numbers, within: Numbers) -> UInt8:
    """Record `within[k]` of batch `which[k]`, for each k."""
    records = np.empty((len(which), _RECORD), np.uint8)
    for number, batch in enumerate(batches):
        mine = which == number
        records[mine] = batch[within[mine]]
    return records
