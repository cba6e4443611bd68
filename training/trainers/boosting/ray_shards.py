"""The rows of boosted trees from Ray Data, with `data.feed=stream`: how workers divide a table's rows and read them.

Each worker gets consecutive rows, which are the same in each attempt, so that a killed training ends with the same
bits. Two public ways of Ray do not do that: `read_parquet` packs row groups of several files into blocks, in another
order than that of the files; and `streaming_split`, by which Ray Train divides datasets, gives each worker the blocks
that are ready first, and leaves out the rows by which equal shards would differ.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from training.data.dataset import is_validation
from training.data.images.decoding import binary_to_numpy
from training.data.row_kinds import model_inputs
from training.data.sample_order import checksum
from training.data.tables.values import FEATURE
from training.errors import TransientError
from training.records import DatasetVersion

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from ray.data import DataIterator, Dataset
    from ray.train import DataConfig

LEARN, VALIDATION = "train", "validation"  # names of the Ray Datasets
_ERROR = "error"  # column of a block that has the reason why a part file could not be read
InputsAndTargets = tuple[npt.NDArray[np.float32], npt.NDArray[Any]]
_Arrays = dict[str, npt.NDArray[Any]]


def ray_datasets(
    version: DatasetVersion, validation_share: float, files: "FileSystem | None" = None
) -> "dict[str, Dataset]":
    """The rows to learn from and the rows for validation, by the names :data:`LEARN` and :data:`VALIDATION`.

    Both have a float32 tensor column `inputs` and the columns `target` and `digest`. `files` is a file system whose
    root is the version's folder; None for this machine's disk. `validation_share` counts if the source has no
    validation split of its own.
    """
    import ray.data
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    parts = [{"path": part.path, "sha256": part.sha256} for part in version.parts["train"]]
    dataset = ray.data.from_items(parts, override_num_blocks=len(parts))
    read = partial(
        _rows_of_part,
        files=files or SubTreeFileSystem(version.path, LocalFileSystem()),
        version=version,
        validation_share=validation_share,
    )
    return {
        name: dataset.map_batches(partial(read, kept_back=name == VALIDATION), batch_size=1)
        for name in (LEARN, VALIDATION)
    }


def _rows_of_part(
    part: _Arrays, files: "FileSystem", version: DatasetVersion, validation_share: float, kept_back: bool
) -> _Arrays:
    """The validation rows of a part file, or without `kept_back` the other rows, after a check of the file's sha256.

    For a file that can't be read, or is damaged, one row with the reason in the column `error`: Ray Data reports an
    exception without its type.
    """
    (path,), (sha256,) = part["path"], part["sha256"]
    try:
        with files.open_input_file(path) as stream:
            content = stream.read_buffer()
    except OSError as error:
        return _failed(f"{version.path}/{path}: {error}.")
    if hashlib.sha256(content).hexdigest() != sha256:
        return _failed(f"{version.path}/{path}: not the file that the dataset's manifest lists.")
    schema, marked = version.table, version.validation_rows is not None
    assert schema is not None
    names = [f"{FEATURE}{column.name}" for column in schema.raw.columns]
    with pq.ParquetFile(pa.BufferReader(content)) as parquet:
        table = parquet.read([*names, "label", "digest", *(["validation"] if marked else [])])
    digests = binary_to_numpy(table["digest"], np.uint64).reshape(-1, 2)[:, 0]
    marks = table["validation"].to_numpy() if marked else is_validation(digests, validation_share)
    chosen = marks == kept_back
    table = table.filter(pa.array(chosen))
    return {
        "inputs": model_inputs(table, schema, FEATURE),
        "target": table["label"].to_numpy(),
        "digest": digests[chosen],
    }


def _failed(reason: str) -> _Arrays:
    return {_ERROR: np.array([f"{reason} The next attempt reads the file again."])}


def consecutive_shards() -> "DataConfig":
    """Configuration by which Ray Train gives each worker consecutive rows; shards differ by at most one row."""
    from ray.train import DataConfig

    class ConsecutiveShards(DataConfig):
        def configure(
            self, datasets: "dict[str, Dataset]", world_size: int, *_: Any, **__: Any
        ) -> "list[dict[str, DataIterator]]":
            shards: list[dict[str, DataIterator]] = [{} for _ in range(world_size)]
            for name, dataset in datasets.items():
                options = self.default_ingest_options()
                options.preserve_order = True
                dataset.context.execution_options = options
                rows = dataset.materialize()
                count = rows.count()
                # The first bound is 0, and the part before it empty: Ray needs a bound also for a single worker.
                bounds = [count * rank // world_size for rank in range(world_size)]
                for shard, part in zip(shards, rows.split_at_indices(bounds)[1:], strict=True):
                    shard[name] = part.iterator()
            return shards

    return ConsecutiveShards()


@dataclass(frozen=True)
class Shard:
    """One worker's rows of a Ray Dataset: their number, the checksum of their digests, and a copy of the rows.

    `checksum` is that of :func:`training.data.sample_order.checksum`, with the first 8 bytes of a row's digest as the
    row's number.
    """

    rows: int
    checksum: int
    read: Callable[[], InputsAndTargets]


def open_shard(name: str, version: DatasetVersion, moved: Callable[[int], None]) -> Shard:
    """This Ray Train worker's rows of the dataset `name`. All workers take part, and wait until Ray Data has read them.

    Calls `moved` with the bytes of each block that has reached this machine. Raises :class:`TransientError` if a part
    file could not be read.
    """
    import ray.train

    blocks = ray.train.get_dataset_shard(name)
    rows = total = 0
    for block in _blocks(blocks):
        rows, total = rows + len(block["digest"]), total + checksum(block["digest"].view(np.int64))
        moved(sum(column.nbytes for column in block.values()))
    return Shard(rows, total, partial(_copied, blocks, version, rows))


def _copied(blocks: "DataIterator", version: DatasetVersion, rows: int) -> InputsAndTargets:
    inputs = np.empty((rows, *version.shape), np.float32)
    targets = np.empty(rows, np.int64 if version.classes else np.float64)
    start = 0
    for block in _blocks(blocks):
        stop = start + len(block["target"])
        inputs[start:stop], targets[start:stop] = block["inputs"], block["target"]
        start = stop
    return inputs, targets


def _blocks(blocks: "DataIterator") -> Iterator[_Arrays]:
    """The blocks that have rows. Raises :class:`TransientError` for a block of a file that could not be read."""
    whole: Any = None  # whole blocks, as Ray documents; its annotation of `batch_size` lacks None
    batches: Any = blocks.iter_batches(batch_size=whole, batch_format="numpy")
    for block in batches:
        if len(block.get(_ERROR, ())):
            raise TransientError(str(block[_ERROR][0]))
        if len(block.get("digest", ())):
            yield block
