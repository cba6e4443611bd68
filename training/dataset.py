"""An immutable dataset version on disk: its identity, how it is found, and how its columns are read.

`<store>/<name>/<fingerprint>/{train,test}/part-*.parquet` and `manifest.json`; a folder without its manifest
does not exist. An image is one fixed-width binary value, channels first: reading it is a copy of one buffer,
where Arrow's list-based tensor type costs fifteen times as much.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock

from training.errors import DataError
from training.files import atomic_folder, digest_file, digest_json
from training.images import Pixels
from training.paths import Home
from training.records import DatasetVersion, SourceFiles, Split
from training.settings import DataSettings

if TYPE_CHECKING:
    from ray.data import Dataset

MANIFEST = "manifest.json"
_CODE = ("dataset.py", "images.py", "order.py", "prepare.py", "shards.py", "sources/*.py")
_SETTINGS = {"image_size", "channels", "max_train_rows", "max_test_rows", "test_share", "max_dropped_share"}


def part_schema(width: int) -> pa.Schema:
    """Schema of a part file whose images have `width` bytes."""
    return pa.schema(
        [
            pa.field("image", pa.binary(width), nullable=False),
            pa.field("label", pa.int32(), nullable=False),
            pa.field(
                "digest", pa.binary(16), nullable=False
            ),  # first half of the sha256 of the image's bytes
            pa.field("where", pa.string(), nullable=False),
        ]
    )


def fingerprint(files: SourceFiles, settings: DataSettings) -> str:
    """sha256 over the source's content, the settings and the code that turn it into the dataset."""
    code = hashlib.sha256()
    for pattern in _CODE:
        for file in sorted(Path(__file__).parent.glob(pattern)):
            code.update(file.read_bytes())
    return digest_json(
        {
            "source": files.digest,
            "classes": files.classes,
            "settings": settings.model_dump(mode="json", include=_SETTINGS),
            "code": code.hexdigest(),
        }
    )


def find(home: Home, name: str, identity: str) -> DatasetVersion | None:
    """The finished version with this fingerprint, or None: damaged manifest, part missing or shortened."""
    folder = home.dataset(name, identity)
    manifest = folder / MANIFEST
    if not manifest.is_file():
        return None
    try:
        version = DatasetVersion.model_validate({**json.loads(manifest.read_bytes()), "path": str(folder)})
    except (ValueError, TypeError):
        return None
    for parts in version.parts.values():
        for part in parts:
            file = folder / part.path
            if not file.is_file() or file.stat().st_size != part.bytes:
                return None
    return version if version.fingerprint == identity else None


def read_parts(version: DatasetVersion, split: Split, columns: list[str]) -> Iterator[pa.Table]:
    """Tables of the part files in order, each checked against the manifest's sha256 before it is read.

    Raises :class:`DataError` that names the damaged file.
    """
    for part in version.parts[split]:
        file = Path(version.path) / part.path
        if not file.is_file() or digest_file(file) != part.sha256:
            raise DataError(
                f"{file}: missing or not the bytes that the manifest lists. Remove {version.path} and run again: "
                "the dataset is made anew from its source."
            )
        yield pq.read_table(file, columns=columns)


@dataclass(frozen=True)
class Columns:
    """A split in memory, shared between processes: images (rows, channels, height, width) uint8, labels int64."""

    images: Pixels
    labels: npt.NDArray[np.int64]
    digests: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.labels)


def open_columns(version: DatasetVersion, split: Split) -> Columns:
    """Memory-map a split, unpacking its Parquet files once a machine; workers then share the page cache.

    Raises :class:`DataError` when a part file is damaged.
    """
    folder = Path(version.path) / f".columns-{split}"
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            with atomic_folder(folder) as aside:
                _unpack(version, split, aside)
    images, labels, digests = (
        np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("images", "labels", "digests")
    )
    return Columns(images, np.asarray(labels), np.asarray(digests))


def _unpack(version: DatasetVersion, split: Split, folder: Path) -> None:
    rows = version.rows(split)
    images = np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, (rows, *version.shape))
    labels, digests = np.empty(rows, np.int64), np.empty(rows, np.uint64)
    start = 0
    for table in read_parts(version, split, ["image", "label", "digest"]):
        stop = start + len(table)
        images[start:stop] = binary_to_numpy(table["image"], np.uint8).reshape(-1, *version.shape)
        labels[start:stop] = table["label"].to_numpy()
        digests[start:stop] = binary_to_numpy(table["digest"], np.uint64).reshape(-1, 2)[:, 0]
        start = stop
    images.flush()
    np.save(folder / "labels.npy", labels)
    np.save(folder / "digests.npy", digests)


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
    """A split as a Ray Dataset with a uint8 tensor column `image`, and `label`, `digest` as numbers."""
    import ray.data

    paths = [str(Path(version.path) / part.path) for part in version.parts[split]]
    shape = version.shape

    def to_tensors(table: pa.Table) -> dict[str, npt.NDArray[Any]]:
        return {
            "image": binary_to_numpy(table["image"], np.uint8).reshape(-1, *shape),
            "label": table["label"].to_numpy().astype(np.int64),
            "digest": binary_to_numpy(table["digest"], np.uint64)[:, 0].copy(),
        }

    dataset = ray.data.read_parquet(paths, columns=["image", "label", "digest"])
    return dataset.map_batches(to_tensors, batch_format="pyarrow", zero_copy_batch=True)
