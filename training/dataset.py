"""An immutable dataset version on disk: its identity, how it is found, and how its columns are read.

`<store>/<name>/<fingerprint>/{train,test}/part-*.parquet` and `manifest.json`; a folder without its manifest
does not exist, and one whose files are not what the manifest lists is none. An image is one fixed-width binary
value, channels first: reading it is a copy of one buffer, where Arrow's list-based tensor type costs fifteen
times as much.
"""

import hashlib
import json
import logging
import os
import shutil
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from filelock import FileLock

from training.errors import DataError
from training.files import atomic_folder, canonical_json, digest_json, write_text
from training.images import Pixels
from training.manifest import check_parts, read_manifest, read_parts
from training.paths import Home
from training.records import DatasetVersion, SourceFiles, Split
from training.settings import DataSettings
from training.sources.locate import reader
from training.sources.splits import VALIDATION

if TYPE_CHECKING:
    from ray.data import Dataset

log = logging.getLogger("evergreen.dataset")

_CODE = (
    "dataset.py",
    "duplicates.py",
    "images.py",
    "manifest.py",
    "order.py",
    "prepare.py",
    "shards.py",
    "sources/*.py",
)
_SETTINGS = {"image_size", "channels", "max_train_rows", "max_test_rows", "max_dropped_share", "duplicates"}
_THREADS = min(8, os.cpu_count() or 1)  # hashing leaves Python's lock alone
_COLUMNS = ("images.npy", "labels.npy", "digests.npy")
_CHECKSUMS = "checksums.json"
_BLOCK = 8 << 20
_ATTEMPTS = 3
_GONE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


def part_schema(width: int, marked: bool = False) -> pa.Schema:
    """Schema of a part file whose images have `width` bytes; `marked` where the source has a validation split."""
    schema = pa.schema(
        [
            pa.field("image", pa.binary(width), nullable=False),
            pa.field("label", pa.int32(), nullable=False),
            pa.field(
                "digest", pa.binary(16), nullable=False
            ),  # first half of the sha256 of the image's bytes
            pa.field(
                "source", pa.binary(16), nullable=False
            ),  # first half of the sha256 of the source's row, before it is decoded and resized
            pa.field("where", pa.string(), nullable=False),
        ]
    )
    return schema.append(pa.field("validation", pa.bool_(), nullable=False)) if marked else schema


def fingerprint(files: SourceFiles, settings: DataSettings) -> str:
    """sha256 over the source's content, the settings and the code that turn it into the dataset.

    `test_share` and `validation_split` count only for sources that divide no rows, or have a validation split.
    """
    splits = reader(files).splits(files)
    used = _SETTINGS | ({"test_share"} if "" in splits else set())
    used |= {"validation_split"} if VALIDATION in splits else set()
    code = hashlib.sha256()
    for pattern in _CODE:
        for file in sorted(Path(__file__).parent.glob(pattern)):
            code.update(file.read_bytes())
    return digest_json(
        {
            "source": files.digest,
            "classes": files.classes,
            "settings": settings.model_dump(mode="json", include=used),
            "code": code.hexdigest(),
        }
    )


def find(home: Home, name: str, identity: str) -> DatasetVersion | None:
    """The finished version with this fingerprint, every file of it checked against its sha256.

    None when there is none, or it is damaged: then the log says which file is, and the dataset is to be made anew.
    """
    folder = home.dataset(name, identity)
    if not folder.is_dir():
        return None
    try:
        version = read_manifest(folder, identity)
        check_parts(version)
    except DataError as error:
        log.warning("%s The dataset is made anew from its source.", error)
        return None
    return version


@dataclass(frozen=True)
class Columns:
    """A split in memory, shared between processes: images (rows, channels, height, width) uint8, labels int64.

    `validation` marks the rows that the source itself keeps for validation, where it has such rows.
    """

    images: Pixels
    labels: npt.NDArray[np.int64]
    digests: npt.NDArray[np.uint64]
    validation: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def selected(self, rows: npt.NDArray[np.bool_]) -> "Columns":
        """Some of the rows, copied."""
        return Columns(self.images[rows], self.labels[rows], self.digests[rows])


def open_columns(version: DatasetVersion, split: Split) -> Columns:
    """Memory-map a split, unpacking its Parquet files once a machine; workers then share the page cache.

    The unpacked files are checked each time, at some 2 GB/s and thread, and unpacked anew when they were changed.
    Raises :class:`DataError` when a part file is damaged, too.
    """
    folder = Path(version.path) / f".columns-{split}"
    for _ in range(_ATTEMPTS):
        seen = _stamp(folder)
        damaged = _damaged_column(folder, version, split)
        if damaged is None:
            # As plain arrays over the mapping: each read through np.memmap makes another one of it.
            return Columns(
                *(np.asarray(np.load(folder / name, mmap_mode="r")) for name in _files(version, split))
            )
        with FileLock(f"{folder}.lock"):
            if _stamp(folder) == seen:  # else another process has just unpacked it
                _unpack_anew(folder, damaged, version, split)
    raise DataError(f"{damaged}: damaged again right after it was written. Check the disk of {version.path}.")


def _files(version: DatasetVersion, split: Split) -> tuple[str, ...]:
    """Names of the unpacked files of a split, in the order of the fields of :class:`Columns`."""
    marked = split == "train" and version.validation_rows is not None
    return (*_COLUMNS, "validation.npy") if marked else _COLUMNS


def _stamp(folder: Path) -> tuple[int, int] | None:
    """What differs between two folders of the same name."""
    try:
        found = folder.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns


def _damaged_column(folder: Path, version: DatasetVersion, split: Split) -> Path | None:
    """The first file of unpacked columns that is not what was written, or None."""
    try:
        noted = dict(json.loads((folder / _CHECKSUMS).read_bytes()))
    except (*_GONE, ValueError, TypeError):
        return folder / _CHECKSUMS
    if noted.get("parts") != _parts_digest(version, split):
        return folder / _CHECKSUMS
    files = (folder / name for name in _files(version, split))
    return next((file for file in files if noted.get(file.name) != _checksums(file)), None)


def _parts_digest(version: DatasetVersion, split: Split) -> str:
    return digest_json([version.shape, [part.sha256 for part in version.parts[split]]])


def _checksums(file: Path) -> list[int]:
    """Size in bytes and crc32 of each 8 MiB block; nothing when there is no file.

    It takes half of sha256's time and is enough against damage, which has no intention.
    """

    def block(start: int) -> int:
        with file.open("rb") as stream:
            stream.seek(start)
            return zlib.crc32(stream.read(_BLOCK))

    try:
        size = file.stat().st_size
        with ThreadPoolExecutor(_THREADS) as pool:
            return [size, *pool.map(block, range(0, size, _BLOCK))]
    except _GONE:
        return []


def _unpack_anew(folder: Path, damaged: Path, version: DatasetVersion, split: Split) -> None:
    if folder.exists():
        log.warning("%s: not what was written; unpacked anew from the dataset's Parquet files", damaged)
        shutil.rmtree(folder)
    for left in folder.parent.glob(
        f".{folder.name}.*.tmp"
    ):  # by a process that was killed: this one has the lock
        shutil.rmtree(left)
    with atomic_folder(folder) as aside:
        _unpack(version, split, aside)
        written: dict[str, object] = {name: _checksums(aside / name) for name in _files(version, split)}
        parts = {"parts": _parts_digest(version, split)}
        write_text(aside / _CHECKSUMS, canonical_json(written | parts))


def _unpack(version: DatasetVersion, split: Split, folder: Path) -> None:
    rows = version.rows(split)
    labels, digests, marks = np.empty(rows, np.int64), np.empty(rows, np.uint64), np.empty(rows, np.bool_)
    marked = "validation.npy" in _files(version, split)
    columns = ["image", "label", "digest", *(["validation"] if marked else [])]
    start = 0
    # Written, not mapped: on a full disk writing is an error, and a write to mapped memory kills the process.
    with (folder / "images.npy").open("wb") as images:
        header = {"descr": "|u1", "fortran_order": False, "shape": (rows, *version.shape)}
        np.lib.format.write_array_header_1_0(images, header)
        for table in read_parts(version, split, columns):
            stop = start + len(table)
            images.write(binary_to_numpy(table["image"], np.uint8).data)
            labels[start:stop] = table["label"].to_numpy()
            digests[start:stop] = binary_to_numpy(table["digest"], np.uint64).reshape(-1, 2)[:, 0]
            if marked:
                marks[start:stop] = table["validation"].to_numpy()
            start = stop
    np.save(folder / "labels.npy", labels)
    np.save(folder / "digests.npy", digests)
    if marked:
        np.save(folder / "validation.npy", marks)


def binary_to_numpy(column: pa.ChunkedArray, dtype: Any) -> npt.NDArray[Any]:
    """A fixed-width binary column as one array of (rows, width / itemsize), without looking at single values."""
    width = column.type.byte_width
    chunks = [
        np.frombuffer(chunk.buffers()[1], np.uint8)[
            chunk.offset * width : (chunk.offset + len(chunk)) * width
        ]
        for chunk in column.chunks
    ]
    flat: npt.NDArray[Any] = np.concatenate(chunks) if len(chunks) != 1 else chunks[0]
    rows: npt.NDArray[Any] = flat.view(dtype).reshape(len(column), -1)
    return rows


def is_validation(digests: npt.NDArray[np.uint64], share: float) -> npt.NDArray[np.bool_]:
    """Which training rows are kept back for validation.

    The image's content decides, not its position: a row stays on its side as the data grow, and copies of an
    image never stand on both sides. The test split uses the digest's second half, this the first.
    """
    return (digests % np.uint64(2**24)).astype(np.float64) < share * 2**24


def ray_dataset(version: DatasetVersion, split: Split) -> "Dataset":
    """A split as a Ray Dataset with a uint8 tensor column `image`, and `label`, `digest` as numbers.

    Training rows have a boolean column `validation` as well where the source has a validation split.

    Ray's reader verifies no checksums: :func:`find` has hashed the files before.
    """
    import ray.data

    paths = [str(Path(version.path) / part.path) for part in version.parts[split]]
    shape = version.shape
    marked = split == "train" and version.validation_rows is not None

    def to_tensors(table: pa.Table) -> dict[str, npt.NDArray[Any]]:
        return {
            "image": binary_to_numpy(table["image"], np.uint8).reshape(-1, *shape),
            "label": table["label"].to_numpy().astype(np.int64),
            "digest": binary_to_numpy(table["digest"], np.uint64)[:, 0].copy(),
        } | ({"validation": table["validation"].to_numpy()} if marked else {})

    columns = ["image", "label", "digest", *(["validation"] if marked else [])]
    dataset = ray.data.read_parquet(paths, columns=columns)
    return dataset.map_batches(to_tensors, batch_format="pyarrow", zero_copy_batch=True)
