"""P4: read back the images that preparation wrote, on one thread. Side B is `np.load` of the same bytes.

A worker opens the memory-mapped columns of a dataset version, and reads their rows a batch at a time; when it reads an
image for the first time, it compares the image with its digest. Where all images are read at once, as for scoring, the
columns are verified as a whole. The part files are read once per machine, when the columns are unpacked.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.baselines.trainings import version_of
from benchmarks.harness.row import Claim, Outcome, Row, Workspace

_REPEATS = 15
_BATCH = 128


def prepare(workspace: Workspace) -> None:
    """Prepare the dataset version, and write its train images as one .npy file."""
    version = _version(workspace)
    from training.data.dataset import open_columns

    np.save(workspace.shared / "images.npy", np.asarray(open_columns(version, "train").inputs))


def parquet(workspace: Workspace) -> Outcome:
    """A: the image column of all part files as one array, read in three ways.

    Without verification, with Parquet's page checksums (CRC-32) verified, and by `read_parts`, which verifies each
    file's sha256.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from training.data.dataset import binary_to_numpy
    from training.data.manifest import read_parts

    pa.set_cpu_count(1)
    version = _version(workspace)

    def checked() -> Any:
        return np.concatenate([_images(table) for table in read_parts(version, "train", ["image"])])

    def parquet_alone(pages_verified: bool = False) -> Any:
        files = [Path(version.path) / part.path for part in version.parts["train"]]
        opened = [
            pq.ParquetFile(file, memory_map=True, page_checksum_verification=pages_verified) for file in files
        ]
        tables = [file.read(["image"], use_threads=False) for file in opened]
        return np.concatenate([_images(table) for table in tables])

    def _images(table: Any) -> Any:
        return binary_to_numpy(table["image"], np.uint8).reshape(-1, *version.shape)

    speeds = {
        "mb_per_s": _speed(parquet_alone),
        "pages_mb_per_s": _speed(lambda: parquet_alone(pages_verified=True)),
        "sha256_mb_per_s": _speed(checked),
    }
    return Outcome(speeds, _did(checked()))


def training(workspace: Workspace) -> Outcome:
    """A: the first epoch of a training worker: every image is read once, in batches, and compared with its digest."""
    from training.data.dataset import open_columns

    version = _version(workspace)

    def read() -> Any:
        columns = open_columns(version, "train", check_images=False)
        images = np.empty_like(columns.inputs)
        for start in range(0, len(images), _BATCH):
            rows = np.arange(start, min(start + _BATCH, len(images)))
            images[rows] = columns.read(rows)
        return images

    return Outcome({"mb_per_s": _speed(read)}, _did(read()))


def whole(workspace: Workspace) -> Outcome:
    """A: open the columns of the train split, verify them as a whole, and read all images."""
    from training.data import columns
    from training.data.dataset import open_columns

    columns._THREADS = 1
    version = _version(workspace)

    def read() -> Any:
        return np.array(open_columns(version, "train").inputs)

    return Outcome({"mb_per_s": _speed(read)}, _did(read()))


def load(workspace: Workspace) -> Outcome:
    """B: `np.load`."""

    def read() -> Any:
        return np.load(workspace.shared / "images.npy")

    return Outcome({"mb_per_s": _speed(read)}, _did(read()))


def _version(workspace: Workspace) -> Any:
    return version_of(workspace.data, workspace.pick(60_000, 20_000, 1_000))


def _speed(read: Callable[[], Any]) -> float:
    size = read().nbytes / 1e6
    taken = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        read()
        taken.append(time.perf_counter() - began)
    return float(size / median(taken))


def _did(images: Any) -> dict[str, Any]:
    return {"bytes": images.nbytes, "sum": int(images.sum(dtype=np.int64))}


ROW = Row(
    id="P4",
    sides={"a": training, "whole": whole, "parquet": parquet, "b": load},
    claims=(
        Claim(
            "P4",
            "a worker reads the images for the first time, in batches of 128, each image verified / np.load",
            of="mb_per_s",
            unit="MB/s",
            goal=0.35,
            at_least=True,
        ),
        Claim(
            "P4-whole",
            "all images are read at once, with their checksums (CRC-32) verified / np.load",
            of="mb_per_s",
            unit="MB/s",
            goal=0.35,
            at_least=True,
            a="whole",
        ),
        Claim(
            "P4-parquet",
            "reading the part files / np.load",
            of="mb_per_s",
            unit="MB/s",
            goal=0.7,
            at_least=True,
            a="parquet",
        ),
        *(
            Claim(
                f"P4-{name}",
                f"reading the part files with {what} verified / np.load",
                a="parquet",
                of=f"{name}_mb_per_s",
                of_b="mb_per_s",
                unit="MB/s",
                goal=0.35,
                at_least=True,
            )
            for name, what in (("pages", "page checksums"), ("sha256", "each file's sha256"))
        ),
    ),
    prepare=prepare,
    same=("bytes", "sum"),
    pairs=10,  # of a second each
    quick=True,
)
