"""Read the part files of images with numbers to predict: unpack them to arrays, or open them as a Ray Dataset."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.images.decoding import binary_to_numpy
from training.data.manifest import read_parts
from training.records import DatasetVersion, Split

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from ray.data import Dataset


def unpack_images(version: DatasetVersion, split: Split, folder: Path) -> None:
    """Write `inputs.npy`, `targets.npy`, `digests.npy` and, if the rows are marked, `validation.npy` to `folder`."""
    rows = version.rows(split)
    targets, digests, marks = np.empty(rows), np.empty(rows, np.uint64), np.empty(rows, np.bool_)
    columns = _columns(version, split)
    start = 0
    # Written to a file, not to a memory map: on a full disk, a file write raises an error, but a write to mapped
    # memory kills the process.
    with (folder / "inputs.npy").open("wb") as images:
        header = {"descr": "|u1", "fortran_order": False, "shape": (rows, *version.shape)}
        np.lib.format.write_array_header_1_0(images, header)
        for table in read_parts(version, split, columns):
            stop = start + len(table)
            images.write(binary_to_numpy(table["image"], np.uint8).data)
            targets[start:stop] = table["label"].to_numpy()
            digests[start:stop] = binary_to_numpy(table["digest"], np.uint64).reshape(-1, 2)[:, 0]
            if "validation" in columns:
                marks[start:stop] = table["validation"].to_numpy()
            start = stop
    np.save(folder / "targets.npy", targets)
    np.save(folder / "digests.npy", digests)
    if "validation" in columns:
        np.save(folder / "validation.npy", marks)


def ray_dataset(version: DatasetVersion, split: Split, files: "FileSystem | None" = None) -> "Dataset":
    """Open a split as :func:`training.data.dataset.ray_dataset` does; the column `label` has the float64 numbers."""
    import ray.data
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    paths = [part.path for part in version.parts[split]]
    # Paths are relative to the version's folder: Ray reads the part of a path after a question mark as a URL's query.
    files = files or SubTreeFileSystem(version.path, LocalFileSystem())
    shape, columns = version.shape, _columns(version, split)

    def to_tensors(table: pa.Table) -> dict[str, npt.NDArray[Any]]:
        return {
            "image": binary_to_numpy(table["image"], np.uint8).reshape(-1, *shape),
            "label": table["label"].to_numpy().astype(np.float64),
            "digest": binary_to_numpy(table["digest"], np.uint64)[:, 0].copy(),
        } | ({"validation": table["validation"].to_numpy()} if "validation" in columns else {})

    dataset = ray.data.read_parquet(paths, filesystem=files, columns=columns)
    return dataset.map_batches(to_tensors, batch_format="pyarrow", zero_copy_batch=True)


def _columns(version: DatasetVersion, split: Split) -> list[str]:
    marked = split == "train" and version.validation_rows is not None
    return ["image", "label", "digest", *(["validation"] if marked else [])]
