"""The images of all rows: 28x28 grey images in ten classes, as idx files.

The source is Fashion-MNIST in the folder EVERGREEN_TEST_DATA or, if that is unset, scikit-learn's digits, enlarged.
For more rows than the source has, its images repeat with two pixels changed, so that no two images are equal.
"""

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

UInt8 = npt.NDArray[np.uint8]
SIDE = 28
CLASSES = 10
_WRITTEN_ROWS = 100_000  # rows written at a time: ten million rows do not fit into memory
_ROLES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


class Images(NamedTuple):
    """Pixels, uint8 of shape (rows, 28, 28), and labels of shape (rows,)."""

    pixels: UInt8
    labels: UInt8


def idx_folder(data: Path, train_rows: int, test_rows: int = 1000) -> Path:
    """A folder `raw` with the given numbers of rows of both splits; the first call creates it."""
    folder = data / f"images-{train_rows}-{test_rows}" / "raw"
    if not folder.exists():
        aside = folder.with_name("raw.tmp")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        for split, rows in (("train", train_rows), ("test", test_rows)):
            _write(aside, split, rows)
        aside.rename(folder)
    return folder


def read(folder: Path, split: str) -> Images:
    """The rows of a split, memory-mapped from the idx files."""
    images, labels = (folder / name for name in _ROLES[split])
    return Images(
        np.memmap(images, np.uint8, mode="r", offset=16).reshape(-1, SIDE, SIDE),
        np.memmap(labels, np.uint8, mode="r", offset=8),
    )


def _source(split: str) -> Images:
    if folder := os.environ.get("EVERGREEN_TEST_DATA"):
        return read(Path(folder) / "FashionMNIST" / "raw", split)
    from sklearn.datasets import load_digits

    digits = load_digits()
    small = (digits.images * 15).astype(np.uint8)
    mine = np.arange(len(small)) % 5 == 4 if split == "test" else np.arange(len(small)) % 5 != 4
    large = np.kron(small[mine], np.ones((1, 3, 3), np.uint8))
    return Images(np.pad(large, ((0, 0), (2, 2), (2, 2))), digits.target[mine].astype(np.uint8))


def _repeated(images: Images, start: int, stop: int) -> Images:
    """Rows [start, stop) of the endless repetition of `images`."""
    rows = np.arange(start, stop)
    index, turn = rows % len(images.labels), rows // len(images.labels)
    pixels = np.array(images.pixels[index])
    pixels[:, 0, 0] ^= (turn % 256).astype(np.uint8)
    pixels[:, 0, 1] ^= (turn // 256).astype(np.uint8)
    return Images(pixels, np.array(images.labels[index]))


def _write(folder: Path, split: str, rows: int) -> None:
    """Write idx files (http://yann.lecun.com/exdb/mnist): a magic number, the dimensions, the bytes."""
    source = _source(split)
    images, labels = (folder / name for name in _ROLES[split])
    with images.open("wb") as images_out, labels.open("wb") as labels_out:
        images_out.write(np.array([0x803, rows, SIDE, SIDE], ">u4").tobytes())
        labels_out.write(np.array([0x801, rows], ">u4").tobytes())
        for start in range(0, rows, _WRITTEN_ROWS):
            part = _repeated(source, start, min(rows, start + _WRITTEN_ROWS))
            images_out.write(part.pixels.tobytes())
            labels_out.write(part.labels.tobytes())
