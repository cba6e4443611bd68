"""MNIST and other data sets in its format: images and labels in idx files, as their authors publish them.

In: a folder with the files, or a download. Out: raw rows of height x width x 1 pixels, read through a memory map.
Fetching the source fails for a file whose header and length disagree, and for a label without a class.
"""

import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from filelock import FileLock

from training.data.sources.download import fetch_any
from training.data.sources.places import check_unchanged, given_path, write_checksums
from training.data.sources.published import Publication, publication
from training.data.sources.rows import UInt8, checked_rows, cut, pixel_batch
from training.data.sources.wording import counted
from training.errors import DataError
from training.records import SourceFiles
from training.storage.files import atomic_folder, copy_checked, digest_file, digest_json

SPLITS = ("train", "test")
FILES = {
    ("train", "images"): "train-images-idx3-ubyte",
    ("train", "labels"): "train-labels-idx1-ubyte",
    ("test", "images"): "t10k-images-idx3-ubyte",
    ("test", "labels"): "t10k-labels-idx1-ubyte",
}
_DIMENSIONS = {"images": 3, "labels": 1}
_UNSIGNED_BYTE = 8  # the idx format's type code
_MAX_UNPACKED = 8 << 30


@dataclass(frozen=True)
class IdxFiles:
    """A data set of torchvision's MNIST family; `name` is its class in torchvision, such as FashionMNIST.

    `path` is a folder that holds the files, plain or as .gz; without `path`, the files are downloaded. `published`
    has their addresses and digests; without it, :func:`training.data.sources.published.publication` provides them.
    """

    name: str
    classes: tuple[str, ...] = ()
    path: str | Path | None = None
    published: Publication | None = None

    def fetch(self, folder: Path) -> SourceFiles:
        """Find or download the four files, and check their headers, lengths and labels."""
        if self.path is None:
            raw, origin = self._downloaded(folder), f"{self.name}, as published"
        else:
            path = given_path(self.path, self.name)
            raw, origin = _find(path, folder, self.name), str(path)
        files = {role: raw / name for role, name in FILES.items()}
        digests = {role: digest_file(_present(file)) for role, file in files.items()}
        check_unchanged(raw, {file.name: digests[role] for role, file in files.items()})
        sizes = {role: file.stat().st_size for role, file in files.items()}
        return SourceFiles(
            kind="idx",
            root=str(raw),
            origin=origin,
            digest=digest_json([[*role, digests[role], sizes[role]] for role in FILES]),
            files=len(files),
            bytes=sum(sizes.values()),
            classes=_checked_classes(raw, self.classes),
        )

    def count(self, files: SourceFiles, split: str) -> int:
        """Number of images in the files of `split`."""
        return len(_open(Path(files.root), split, "labels"))

    def splits(self, files: SourceFiles) -> Sequence[str]:
        """("train", "test"): idx files always have both splits."""
        del files
        return SPLITS

    def read(self, files: SourceFiles, split: str, rows: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Raw rows with the row numbers `rows`; rows are numbered as in the files."""
        images, labels = (_open(Path(files.root), split, part) for part in ("images", "labels"))
        numbers = checked_rows(rows, len(labels))
        name = FILES[split, "images"]
        for part in cut(np.full(len(numbers), math.prod(images.shape[1:]))):
            chosen = numbers[part]
            yield pixel_batch(
                images[chosen][..., None],
                [files.classes[label] for label in labels[chosen].tolist()],
                split,
                [f"{name} row {row}" for row in chosen.tolist()],
            )

    def _downloaded(self, folder: Path) -> Path:
        own = "" if self.published is None else f"-{digest_json(asdict(self.published))[:16]}"
        data_folder = folder / f"{self.name}{own}"
        raw = data_folder / "raw"
        data_folder.mkdir(parents=True, exist_ok=True)
        with FileLock(data_folder / "download.lock"):
            self._fetch_once(data_folder, raw)
        return raw

    def _fetch_once(self, folder: Path, raw: Path) -> None:
        if not raw.exists():
            site = self.published or publication(self.name)
            packed = [folder / "download" / file.name for file in site.files]
            for target, file in zip(packed, site.files, strict=True):
                urls = [f"{mirror.rstrip('/')}/{file.name}" for mirror in site.mirrors]
                fetch_any(urls, target, size=file.size, sha256=file.sha256, md5=file.md5)
            _unpack(packed, raw)
            for target in packed:
                target.unlink(missing_ok=True)


def locate(folder: Path, name: str = "") -> Path | None:
    """The folder with idx files: `folder`, its raw/, or raw/ in one of its folders, as torchvision has it; or None.

    Of several such folders, the folder `name` is meant. Raises :class:`DataError` if none of them has this name: they
    have the same files, so another data set would be read without an error.
    """
    near = [at for at in (folder, folder / "raw") if _holds_files(at)]
    if near:
        return near[0]
    raw_folders = {at.parent.name: at for at in sorted(folder.glob("*/raw")) if _holds_files(at)}
    if len(raw_folders) > 1 and name not in raw_folders:
        raise DataError(
            f"{folder}: has the idx files of several data sets ({', '.join(raw_folders)}). "
            "Give the folder of one of them."
        )
    return raw_folders.get(name) or next(iter(raw_folders.values()), None)


def _holds_files(folder: Path) -> bool:
    return any((folder / f"{name}{suffix}").is_file() for name in FILES.values() for suffix in ("", ".gz"))


def _find(path: Path, folder: Path, name: str) -> Path:
    root = locate(path, name)
    if root is None:
        raise DataError(
            f"{path}: none of the files {', '.join(FILES.values())} is here, in raw/ or in a folder's raw/."
        )
    packed = [root / f"{name}.gz" for name in FILES.values()]
    if any((root / name).is_file() for name in FILES.values()):
        return root
    packed = [_present(file) for file in packed]
    raw = folder / "unpacked" / digest_json([digest_file(file) for file in packed])[:16] / "raw"
    if not raw.exists():
        _unpack(packed, raw)
    return raw


def _present(file: Path) -> Path:
    if not file.is_file():
        raise DataError(
            f"{file}: missing. All of {', '.join(FILES.values())} must be there, plain or all as .gz."
        )
    return file


def _unpack(packed: Sequence[Path], raw: Path) -> None:
    """Unpack .gz files into the new folder `raw`, and record their checksums, which reveal later changes."""
    with atomic_folder(raw) as aside:
        checksums = {file.name.removesuffix(".gz"): _gunzip(file, aside) for file in packed}
        write_checksums(aside, checksums)


def _gunzip(packed: Path, folder: Path) -> str:
    left = _MAX_UNPACKED

    def read(amount: int) -> bytes:
        nonlocal left
        try:
            chunk = stream.read(amount)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{packed}: damaged or cut short ({error}). Fetch it again.") from error
        left -= len(chunk)
        if left < 0:
            raise DataError(
                f"{packed}: unpacks to more than {_MAX_UNPACKED:,} bytes, which no such file does."
            )
        return chunk

    with gzip.open(packed, "rb") as stream:
        return copy_checked(read, folder / packed.name.removesuffix(".gz"))[0]


def _open(raw: Path, split: str, part: str) -> UInt8:
    """The file's content, memory-mapped: images (rows, height, width) or labels (rows,).

    Raises :class:`DataError` when the header is wrong or does not agree with the file's length.
    """
    file, dimensions = raw / FILES[split, part], _DIMENSIONS[part]
    header_bytes = 4 + 4 * dimensions
    with _present(file).open("rb") as stream:
        header = stream.read(header_bytes)
    size = file.stat().st_size
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if len(header) < header_bytes:
        raise DataError(
            f"{file}: has {counted(size, 'byte')}, not even the {header_bytes} of its header. Fetch it again."
        )
    if header[:4] != magic:
        raise DataError(
            f"{file}: begins with {header[:4].hex()} instead of {magic.hex()}: not an idx file of {part}. "
            "If it is packed, unpack it; else fetch it again."
        )
    shape = tuple(np.frombuffer(header, ">u4", offset=4).tolist())
    if not all(shape):
        raise DataError(f"{file}: holds no {part}: its header says {shape}.")
    if size != header_bytes + math.prod(shape):
        raise DataError(
            f"{file}: has {counted(size, 'byte')}, but its header {shape} calls for "
            f"{header_bytes + math.prod(shape):,}: cut short or damaged. Fetch it again."
        )
    return np.memmap(file, np.uint8, mode="r", offset=header_bytes, shape=shape)


def _checked_classes(raw: Path, declared: tuple[str, ...]) -> tuple[str, ...]:
    """The declared class names, or else the labels' numbers. Raises DataError for a label without a class name."""
    highest = 0
    for split in SPLITS:
        images, labels = _open(raw, split, "images"), _open(raw, split, "labels")
        if len(images) != len(labels):
            raise DataError(
                f"{raw / FILES[split, 'images']}: {counted(len(images), 'image')}, but "
                f"{counted(len(labels), 'label')} in "
                f"{FILES[split, 'labels']}: they don't belong together. Fetch both again."
            )
        row = int(labels.argmax())
        highest = max(highest, int(labels[row]))
        if declared and highest >= len(declared):
            raise DataError(
                f"{raw / FILES[split, 'labels']} row {row}: label {highest}, but only "
                f"{counted(len(declared), 'class is', 'classes are')} declared ({', '.join(declared)})."
            )
    return declared or tuple(str(number) for number in range(highest + 1))
