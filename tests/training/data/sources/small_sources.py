"""Data of sources, small and with different content in each row: written to a folder, or published on a web server."""

import gzip
import hashlib
import os
import random
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from web_site import Site

from training.data.sources import cifar, idx
from training.data.sources.published import Download, Publication

Pixels = npt.NDArray[np.uint8]

IDX_ROWS = {"train": 7, "test": 3}
CIFAR_ROWS = {"train": (4, 3, 1, 2, 5), "test": (3,)}  # of each file


def flip(file: Path, position: int = -1) -> None:
    """Change one bit of the byte at `position`."""
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)


def idx_bytes(values: npt.NDArray[Any]) -> bytes:
    """An idx file of bytes."""
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()


def write_idx(raw: Path) -> dict[tuple[str, str], Pixels]:
    """Four idx files with images of 5x4 pixels; returns the arrays by split and part."""
    draw = np.random.default_rng(0)
    arrays = {}
    raw.mkdir(parents=True)
    for (split, part), name in idx.FILES.items():
        count = IDX_ROWS[split]
        values = draw.integers(0, 256, (count, 5, 4)) if part == "images" else np.arange(count) % 10
        arrays[split, part] = values.astype(np.uint8)
        (raw / name).write_bytes(idx_bytes(arrays[split, part]))
    return arrays


def publish_idx(site: Site, raw: Path) -> Publication:
    """Publish the idx files of `raw` on two mirrors, of which the first is down. Files that are gone are not found."""
    files = []
    for name in idx.FILES.values():
        packed = gzip.compress((raw / name).read_bytes()) if (raw / name).is_file() else b""
        site.give(f"/good/{name}.gz", packed) if packed else site.fail(f"/good/{name}.gz", 404)
        site.fail(f"/down/{name}.gz", 503 if packed else 404)
        sha256, md5 = hashlib.sha256(packed).hexdigest(), hashlib.md5(packed).hexdigest()
        files.append(Download(f"{name}.gz", md5, sha256, len(packed)))
    return Publication((site.url("/down/"), site.url("/good")), tuple(files))


def write_cifar(folder: Path) -> dict[str, tuple[Pixels, Pixels]]:
    """Six files of CIFAR-10; returns images (rows, 32, 32, 3) and labels of each split."""
    draw = np.random.default_rng(1)
    folder.mkdir(parents=True)
    arrays = {}
    for split, names in cifar.FILES.items():
        rows = CIFAR_ROWS[split]
        images = draw.integers(0, 256, (sum(rows), 32, 32, 3)).astype(np.uint8)
        labels = (np.arange(len(images)) % 10).astype(np.uint8)
        records = np.concatenate(
            [labels[:, None], images.transpose(0, 3, 1, 2).reshape(len(images), -1)], axis=1
        )
        for name, part in zip(names, np.split(records, np.cumsum(rows)[:-1]), strict=True):
            (folder / name).write_bytes(part.tobytes())
        arrays[split] = images, labels
    return arrays


def publish_cifar(site: Site, folder: Path) -> cifar.Cifar10:
    """Publish an archive of `folder`; returns its source, with an address first that is not followed.

    Without files in `folder`, neither address has an archive.
    """
    if not any(folder.glob("*")):
        urls = tuple(site.fail(path, 404) for path in ("/moved", "/cifar"))
        return cifar.Cifar10(urls=urls, sha256="0" * 64, size=None)
    with tarfile.open(folder.with_suffix(".tar.gz"), "w:gz") as tar:
        tar.add(folder, "cifar-10-batches-bin")
    packed = folder.with_suffix(".tar.gz").read_bytes()
    urls = (site.fail("/moved", 302, Location="http://localhost:1/"), site.give("/cifar", packed))
    return cifar.Cifar10(urls=urls, sha256=hashlib.sha256(packed).hexdigest(), size=len(packed))


def write_folders(
    root: Path, splits: tuple[str, ...] = ("train", "test"), count: int = 6, shuffle: int = 0
) -> Path:
    """Files in folders of two classes, with distinct contents; their names and times depend on `shuffle`."""
    names = random.Random(shuffle)
    for split in splits:
        for label in ("cat", "dog"):
            folder = root / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                file = folder / f"{names.getrandbits(60):x}.{names.choice(['jpg', 'PNG', 'webp', 'tiff'])}"
                file.write_bytes(f"{split} {label} {number}".encode())
                os.utime(file, (shuffle, shuffle))
    return root
