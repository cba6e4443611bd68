"""An immutable dataset version on disk: its identity, and how it is found.

`<store>/<name>/<fingerprint>/{train,test}/part-*.parquet` and `manifest.json`; a folder without its manifest
does not exist, and one whose files are not what the manifest lists is none. An image is one fixed-width binary
value, channels first: reading it is a copy of one buffer, where Arrow's list-based tensor type costs fifteen
times as much.
"""

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.code_closure import code_digests
from training.data.columns import Columns as Columns
from training.data.columns import open_columns as open_columns
from training.data.images.decoding import binary_to_numpy as binary_to_numpy
from training.data.manifest import check_parts, read_manifest
from training.data.sources.locate import reader
from training.data.sources.splits import VALIDATION
from training.errors import DataError
from training.records import DatasetVersion, SourceFiles, Split
from training.settings.schema import DataSettings
from training.storage.files import digest_json
from training.storage.paths import Home

if TYPE_CHECKING:
    from ray.data import Dataset

log = logging.getLogger("evergreen.dataset")

_SETTINGS = {"image_size", "channels", "max_train_rows", "max_test_rows", "max_dropped_share", "duplicates"}


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
    return digest_json(
        {
            "source": files.digest,
            "classes": files.classes,
            "settings": settings.model_dump(mode="json", include=used),
            "code": code_digests(*transform_modules(files)),
        }
    )


def transform_modules(files: SourceFiles) -> tuple[str, ...]:
    """The modules that read these source files and make a dataset of their rows."""
    return ("training.data.preparation.prepare", type(reader(files)).__module__)


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
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    paths = [part.path for part in version.parts[split]]
    # Ray takes what follows a question mark in a path for a query, and finds no file with a Parquet file's ending.
    files = SubTreeFileSystem(version.path, LocalFileSystem())
    shape = version.shape
    marked = split == "train" and version.validation_rows is not None

    def to_tensors(table: pa.Table) -> dict[str, npt.NDArray[Any]]:
        return {
            "image": binary_to_numpy(table["image"], np.uint8).reshape(-1, *shape),
            "label": table["label"].to_numpy().astype(np.int64),
            "digest": binary_to_numpy(table["digest"], np.uint64)[:, 0].copy(),
        } | ({"validation": table["validation"].to_numpy()} if marked else {})

    columns = ["image", "label", "digest", *(["validation"] if marked else [])]
    dataset = ray.data.read_parquet(paths, filesystem=files, columns=columns)
    return dataset.map_batches(to_tensors, batch_format="pyarrow", zero_copy_batch=True)
