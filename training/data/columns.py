"""The columns of a dataset version: unpacked from its Parquet files, memory-mapped, and checked for damage.

The folder `.columns-<split>` of a dataset version holds one file per array, and `checksums.json`. Worker processes of
a node share the page cache. When a file no longer matches its checksums, all arrays of the split are unpacked again.
"""

import hashlib
import json
import logging
import os
import shutil
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from training.data.images.decoding import binary_to_numpy
from training.data.manifest import read_parts
from training.data.row_kinds import unpack_table
from training.errors import DataError, TransientError
from training.records import DatasetVersion, Split
from training.storage.files import atomic_folder, canonical_json, digest_json, write_text

log = logging.getLogger("evergreen.dataset")

_THREADS = min(8, os.cpu_count() or 1)  # crc32 releases the global interpreter lock (GIL)
_INPUTS = "inputs.npy"
_COLUMNS = (_INPUTS, "targets.npy", "digests.npy")
_PIXELS = "pixels.npy"
_CHECKSUMS = "checksums.json"
_BLOCK = 8 << 20
_ATTEMPTS = 3
_SELECTED_ROWS = 1024
_GONE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


@dataclass(frozen=True)
class Columns:
    """A split as memory-mapped arrays, one entry per row.

    `inputs` holds uint8 images (rows, channels, height, width), or the encoded columns of a table, float32 (rows,
    columns), see :mod:`training.data.tables.encoding`, or token ids of text, int64 (rows, tokens). `targets` holds
    class numbers (int64), or the numbers to predict of a regression (float64).

    `digests` holds the first 8 bytes of each row's digest. `validation` marks the rows of the source's own
    validation split; None when the source has no such rows. `pixels` holds the first 8 bytes of the digest of each
    image, where rows are images with classes. `unchecked` marks the rows whose images :meth:`read` has yet to compare
    with their digests; None when :func:`open_columns` has checked all images. `weights` says how much each row counts
    (float64, at least 0); None when all rows count the same.
    """

    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    digests: npt.NDArray[np.uint64]
    validation: npt.NDArray[np.bool_] | None = None
    pixels: npt.NDArray[np.uint64] | None = None
    unchecked: npt.NDArray[np.bool_] | None = None
    folder: Path | None = None
    weights: npt.NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def selected(self, rows: npt.NDArray[np.bool_], folder: Path) -> "Columns":
        """The rows that the mask `rows` selects. Their inputs, which may exceed the memory, go to a file in `folder`.

        The file is removed at once, and its space is free when the inputs are no longer used.
        """
        numbers, file = np.flatnonzero(rows), folder / f".selected-{_INPUTS}"
        with file.open("wb") as stream:  # written as in _unpack_images, for the same reason
            _write_header(stream, self.inputs.dtype, (len(numbers), *self.inputs.shape[1:]))
            for start in range(0, len(numbers), _SELECTED_ROWS):
                stream.write(self.inputs[numbers[start : start + _SELECTED_ROWS]].data)
        inputs = np.asarray(np.load(file, mmap_mode="r"))
        file.unlink()
        weights = None if self.weights is None else self.weights[rows]
        return Columns(inputs, self.targets[rows], self.digests[rows], weights=weights)

    def read(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """A copy of the images of the row numbers `rows`; each unchecked image is compared with its digest once.

        Raises :class:`TransientError` for a damaged image: the next :func:`open_columns` unpacks the split again.
        """
        images: npt.NDArray[Any] = self.inputs[rows]
        if self.unchecked is not None:
            for position in np.flatnonzero(self.unchecked[rows]).tolist():
                self._check(int(rows[position]), images[position])
            self.unchecked[rows] = False
        return images

    def _check(self, row: int, image: npt.NDArray[Any]) -> None:
        assert self.folder is not None
        assert self.pixels is not None
        if int.from_bytes(hashlib.sha256(image.tobytes()).digest()[:8], sys.byteorder) != self.pixels[row]:
            (self.folder / _CHECKSUMS).unlink(missing_ok=True)
            raise TransientError(
                f"{self.folder / _INPUTS}: row {row} is not what was written; the next attempt unpacks the file "
                "again from the dataset's Parquet files."
            )


def open_columns(version: DatasetVersion, split: Split, check_images: bool = True) -> Columns:
    """Memory-map a split; the first call unpacks its Parquet files, and worker processes share the page cache.

    Each call checks the unpacked files, at about 2 GB/s per thread, and unpacks the split again when a file has
    changed. Without `check_images`, :meth:`Columns.read` checks each image that it reads instead, because one worker
    of many reads few images; all files of a table are checked in any case. Raises :class:`DataError` when a part file
    is damaged, or when the unpacked files are still damaged after being unpacked again.
    """
    folder = Path(version.path) / f".columns-{split}"
    check_images = check_images or version.table is not None
    for _ in range(_ATTEMPTS):
        seen = _stamp(folder)
        damaged = _damaged_column(folder, version, split, check_images)
        if damaged is None:
            # Plain arrays over the mapping: indexing an np.memmap creates another np.memmap object each time.
            files = _files(version, split)
            arrays: dict[str, Any] = {
                Path(name).stem: np.load(folder / name, mmap_mode="r") for name in files
            }
            made: dict[str, Any] = {name: np.asarray(array) for name, array in arrays.items()}
            columns = Columns(**made)
            if check_images:
                return columns
            return replace(columns, unchecked=np.ones(len(columns), bool), folder=folder)
        with FileLock(f"{folder}.lock"):
            if _stamp(folder) == seen:  # otherwise another process has just unpacked the split
                _unpack_again(folder, damaged, version, split)
    raise DataError(f"{damaged}: damaged again right after it was written. Check the disk of {version.path}.")


def _files(version: DatasetVersion, split: Split) -> tuple[str, ...]:
    """Names of the unpacked files of a split: those of fields of :class:`Columns`."""
    marked = split == "train" and version.validation_rows is not None
    weighted = version.table is not None and version.table.weight is not None
    images = (_PIXELS,) if version.table is None else ()
    marks = ("validation.npy",) if marked else ()
    return (*_COLUMNS, *marks, *images, *(("weights.npy",) if weighted else ()))


def _stamp(folder: Path) -> tuple[int, int] | None:
    """Inode and change time: they differ between a folder and its replacement of the same name."""
    try:
        status = folder.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_ctime_ns


def _damaged_column(folder: Path, version: DatasetVersion, split: Split, check_images: bool) -> Path | None:
    """The first file of the unpacked columns that differs from its recorded checksums, or None when all match."""
    try:
        noted = dict(json.loads((folder / _CHECKSUMS).read_bytes()))
    except (*_GONE, ValueError, TypeError, RecursionError):
        return folder / _CHECKSUMS
    if noted.get("parts") != _parts_digest(version, split):
        return folder / _CHECKSUMS
    checked = [name for name in _files(version, split) if check_images or name != _INPUTS]
    if not check_images and _size(folder / _INPUTS) != next(iter(noted.get(_INPUTS, [])), None):
        return folder / _INPUTS
    return next((folder / name for name in checked if noted.get(name) != _checksums(folder / name)), None)


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except _GONE:
        return None


def _parts_digest(version: DatasetVersion, split: Split) -> str:
    # The numbers that stand for a table's categories depend on the columns, too.
    # `given` does not: without that field, the digest is the one that earlier versions of Evergreen recorded.
    columns = [] if version.table is None else [version.table.model_dump(mode="json", exclude={"given"})]
    return digest_json([version.shape, [part.sha256 for part in version.parts[split]], *columns])


def _checksums(file: Path) -> list[int]:
    """Size in bytes, then the crc32 of each 8 MiB block; an empty list when the file is missing.

    crc32 takes half the time of sha256. It detects accidental damage, but not deliberate changes.
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


def _unpack_again(folder: Path, damaged: Path, version: DatasetVersion, split: Split) -> None:
    if folder.exists():
        log.warning("%s: not what was written; unpacked again from the dataset's Parquet files", damaged)
        shutil.rmtree(folder)
    # Left by a killed process: this process holds the lock, so no other process is unpacking.
    for left in folder.parent.glob(f".{folder.name}.*.tmp"):
        shutil.rmtree(left)
    with atomic_folder(folder) as aside:
        _unpack(version, split, aside)
        written: dict[str, object] = {name: _checksums(aside / name) for name in _files(version, split)}
        parts = {"parts": _parts_digest(version, split)}
        write_text(aside / _CHECKSUMS, canonical_json(written | parts))


def _unpack(version: DatasetVersion, split: Split, folder: Path) -> None:
    if version.table is not None:
        unpack_table(version, split, folder)
    else:
        _unpack_images(version, split, folder)


def _write_header(stream: BinaryIO, kind: "np.dtype[Any]", shape: tuple[int, ...]) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)


def _unpack_images(version: DatasetVersion, split: Split, folder: Path) -> None:
    rows = version.rows(split)
    labels, digests, marks = np.empty(rows, np.int64), np.empty(rows, np.uint64), np.empty(rows, np.bool_)
    pixels = np.empty(rows, np.uint64)
    marked = "validation.npy" in _files(version, split)
    columns = ["image", "label", "digest", "pixels", *(["validation"] if marked else [])]
    start = 0
    # Written to a file, not to a memory map: on a full disk, a file write raises an error, but a write to mapped
    # memory kills the process.
    with (folder / _INPUTS).open("wb") as images:
        _write_header(images, np.dtype(np.uint8), (rows, *version.shape))
        for table in read_parts(version, split, columns):
            stop = start + len(table)
            images.write(binary_to_numpy(table["image"], np.uint8).data)
            labels[start:stop] = table["label"].to_numpy()
            for name, array in (("digest", digests), ("pixels", pixels)):
                array[start:stop] = binary_to_numpy(table[name], np.uint64).reshape(-1, 2)[:, 0]
            if marked:
                marks[start:stop] = table["validation"].to_numpy()
            start = stop
    np.save(folder / "targets.npy", labels)
    np.save(folder / "digests.npy", digests)
    np.save(folder / _PIXELS, pixels)
    if marked:
        np.save(folder / "validation.npy", marks)
