"""Immutable dataset versions on disk: their schema and fingerprint, and functions that find and read them.

A dataset version is a folder `<name>/<first 16 digits of the fingerprint>/` with `{train,test}/part-*.parquet` and
`manifest.json`. A folder without a manifest, or with files that differ from the manifest, is not a dataset version.
An image is one fixed-width binary value, channels first: reading a column of images copies one buffer, which takes a
fifteenth of the time of Arrow's list-based tensor type.
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
from training.data.row_kinds import TABLE_MODULES, check_settings
from training.data.sources.locate import reader
from training.data.sources.splits import VALIDATION
from training.errors import DataError, SettingError
from training.records import DatasetVersion, ProblemName, SourceFiles, Split
from training.settings.schema import DataSettings
from training.storage.files import digest_json
from training.storage.paths import Home

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from ray.data import Dataset

log = logging.getLogger("evergreen.dataset")

_SETTINGS = {"image_size", "channels", "max_train_rows", "max_test_rows", "max_dropped_share", "duplicates"}


def part_schema(width: int, marked: bool = False) -> pa.Schema:
    """Schema of a part file whose images have `width` bytes each.

    `marked` adds the column `validation`, for a source that has a validation split.
    """
    schema = pa.schema(
        [
            pa.field("image", pa.binary(width), nullable=False),
            pa.field("label", pa.int32(), nullable=False),
            # First half of the sha256 of the source's pixels, before conversion and resizing: settings that change no
            # row leave each row in its split.
            pa.field("digest", pa.binary(16), nullable=False),
            # First half of the sha256 of the source's row, before decoding and resizing.
            pa.field("source", pa.binary(16), nullable=False),
            # First half of the sha256 of `image`. Equal images are copies, whatever they were made of.
            pa.field("pixels", pa.binary(16), nullable=False),
            pa.field("where", pa.string(), nullable=False),
        ]
    )
    return schema.append(pa.field("validation", pa.bool_(), nullable=False)) if marked else schema


def fingerprint(
    files: SourceFiles,
    settings: DataSettings,
    problem: ProblemName = "classification",
    transform: str = "",
) -> str:
    """sha256 over the source's content, and over the settings and the code that turn the source into the dataset.

    `transform` is the digest of the recipe's function `transform_rows`, if it has one. `test_share` counts only when
    the source has no splits; `validation_split` only when it has a validation split. Raises :class:`SettingError` for a
    problem or settings that this kind of source does not have.
    """
    check_settings(files, settings, problem)
    splits = reader(files).splits(files)
    used = _SETTINGS | ({"test_share"} if "" in splits else set())
    used |= {"validation_split"} if VALIDATION in splits else set()
    # Images always have classes; the target of a table is read as a class or as a number.
    target = {} if files.kind != "table" else {"problem": problem}
    changed = {"transform": transform} if transform else {}
    return digest_json(
        target
        | changed
        | {
            "source": files.digest,
            "classes": files.classes,
            "settings": settings.model_dump(mode="json", include=used),
            "code": code_digests(*transform_modules(files)),
        }
    )


def transform_modules(files: SourceFiles) -> tuple[str, ...]:
    """Names of the modules that read these source files and convert their rows into a dataset."""
    of_kind = TABLE_MODULES if files.kind == "table" else ()
    return ("training.data.preparation.prepare", type(reader(files)).__module__, *of_kind)


def find(home: Home, name: str, identity: str) -> DatasetVersion | None:
    """The dataset version with this fingerprint, after a check of every file against its sha256.

    None when there is no such version, or when it is damaged: then the log names the damaged file, and the caller has
    to prepare the dataset again.
    """
    folder = home.dataset(name, identity)
    if not folder.is_dir():
        return None
    try:
        version = read_manifest(folder, identity)
        check_parts(version)
    except DataError as error:
        log.warning("%s The dataset is prepared again from its source.", error)
        return None
    return version


def is_validation(digests: npt.NDArray[np.uint64], share: float) -> npt.NDArray[np.bool_]:
    """Mask of the training rows that are held out for validation: about `share` of them.

    The image's content decides, not its position: a row keeps its role as the data grow, and all copies of an image
    have the same role. `digests` holds the first 8 bytes of each row's digest; the last 8 bytes decide which rows
    belong to the test split.
    """
    return (digests % np.uint64(2**24)).astype(np.float64) < share * 2**24


def ray_dataset(version: DatasetVersion, split: Split, files: "FileSystem | None" = None) -> "Dataset":
    """A split as a Ray Dataset with a uint8 tensor column `image` and the numeric columns `label` and `digest`.

    The train split also has a boolean column `validation` when the source has a validation split.

    `files` is a file system whose root is the version's folder; None for this machine's disk. Ray's reader verifies no
    checksums; :func:`find` has checked the files before. Raises :class:`SettingError` for a table, which is read from
    memory.
    """
    if version.table is not None:
        raise SettingError("data.feed: a table is read from memory; use data.feed=memory")
    import ray.data
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    paths = [part.path for part in version.parts[split]]
    # Paths relative to the version's folder: Ray takes the part of a path after a question mark for a URL's query,
    # and then finds no file whose name ends in .parquet.
    files = files or SubTreeFileSystem(version.path, LocalFileSystem())
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
