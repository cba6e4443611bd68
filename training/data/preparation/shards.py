"""Transform one shard of raw rows into part files of a dataset version: decode, validate, split, count and write.

Shards are independent of each other, so one shard is the unit of parallel work. Memory use is one batch of rows.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from training.data.dataset import binary_to_numpy, part_schema
from training.data.images.decoding import Pixels, Target, decode, pixel_digests
from training.data.preparation.row_function import RowFunction, changed_images
from training.data.sources.splits import TEST, VALIDATION
from training.records import ImageShape, PartFile, Record, Split
from training.storage.files import digest_file

SPLITS: tuple[Split, Split] = ("train", "test")
_BATCH_BYTES = 8 << 20  # of pixels per row group and page: large enough to read at the speed of the disk
_BATCH_ROWS = 8192
_MOMENTS_VALUES = 1 << 17  # this many values, widened to 16 bits, fit the processor's cache


class ShardPlan(Record):
    """The input of one transform task."""

    raw: str
    index: int
    classes: tuple[str, ...]
    shape: ImageShape
    image_size: int | None
    channels: int | None
    test_share: float
    folder: str
    marked: bool = False  # whether the source has a validation split, which the part files then mark

    @property
    def batch_rows(self) -> int:
        """See :class:`training.data.preparation.raw_rows.ShardInput`: fewer rows for larger images."""
        return _rows_per_batch(math.prod(self.shape))


class ShardOutcome(Record):
    """The part files and counts of one transform task.

    `sums` and `squares` are the exact sums of pixels and squared pixels per channel, over the train split. `parts`
    has no entry for a split without rows. `bad` gives the location and the reason of each row that can't be used.
    """

    index: int
    parts: dict[Split, PartFile]
    label_counts: dict[Split, tuple[int, ...]]
    sums: tuple[int, ...]
    squares: tuple[int, ...]
    bad: tuple[str, ...]
    validation: int = 0


def transform_shard(
    plan: ShardPlan, batches: Iterator[pa.RecordBatch], function: RowFunction | None = None
) -> ShardOutcome:
    """Decode, validate, split and write one shard, given as batches of raw rows.

    `function` is the recipe's `transform_rows`, applied to the decoded images. Raises :class:`SettingError` if the
    function fails.
    """
    folder, width = Path(plan.folder), math.prod(plan.shape)
    target = Target(plan.image_size, plan.channels, plan.shape)
    counts = {split: np.zeros(len(plan.classes), np.int64) for split in SPLITS}
    sums, squares = (np.zeros(plan.shape[0], np.int64) for _ in range(2))
    paths = {split: folder / split / f"part-{plan.index:05d}.parquet" for split in SPLITS}
    writers = {split: _open_writer(path, width, plan.marked) for split, path in paths.items()}
    bad: list[str] = []
    validation = 0
    try:
        for number, rows in enumerate(batches):
            table, pixels, wrong = _validated(rows, plan, target, function, again=number == 0)
            bad += wrong
            for split, mask in _assign(rows, table, plan.test_share).items():
                part = table.filter(pa.array(mask))
                writers[split].write_table(part)
                counts[split] += np.bincount(part["label"].to_numpy(), minlength=len(plan.classes))
                validation += _marked(part)
                if split == "train":
                    _add_moments(pixels[mask], sums, squares)
    finally:
        for writer in writers.values():
            writer.close()
    return ShardOutcome(
        index=plan.index,
        parts={split: part for split, path in paths.items() if (part := _part(folder, path))},
        label_counts={split: tuple(map(int, count)) for split, count in counts.items()},
        sums=tuple(map(int, sums)),
        squares=tuple(map(int, squares)),
        bad=tuple(bad),
        validation=validation,
    )


def without_rows(plan: ShardPlan, outcome: ShardOutcome, unwanted: Mapping[str, pa.Array]) -> ShardOutcome:
    """Remove the rows whose pixels have the digests `unwanted[role]` from a shard's part files.

    Returns the updated outcome.

    The role of a row is "train", "val" or "test".
    """
    folder, width = Path(plan.folder), math.prod(plan.shape)
    sums, squares = np.array(outcome.sums), np.array(outcome.squares)
    counts = {split: np.array(count) for split, count in outcome.label_counts.items()}
    parts, validation = dict(outcome.parts), outcome.validation
    for split, part in outcome.parts.items():
        path = folder / part.path
        table = pq.read_table(path)
        is_unwanted = pc.is_in(table["pixels"], value_set=unwanted[split])
        if plan.marked and split == "train":
            in_validation = pc.is_in(table["pixels"], value_set=unwanted[VALIDATION])
            is_unwanted = pc.if_else(table["validation"], in_validation, is_unwanted)
        removed = table.filter(is_unwanted)
        if not len(removed):
            continue
        validation -= _marked(removed)
        counts[split] -= np.bincount(removed["label"].to_numpy(), minlength=len(plan.classes))
        if split == "train":
            _add_moments(
                binary_to_numpy(removed["image"], np.uint8).reshape(-1, *plan.shape), sums, squares, -1
            )
        with _open_writer(path, width, plan.marked) as writer:
            writer.write_table(table.filter(pc.invert(is_unwanted)), row_group_size=_rows_per_batch(width))
        del parts[split]
        if (left := _part(folder, path)) is not None:
            parts[split] = left
    return outcome.model_copy(
        update={
            "parts": parts,
            "label_counts": {split: tuple(map(int, count)) for split, count in counts.items()},
            "sums": tuple(map(int, sums)),
            "squares": tuple(map(int, squares)),
            "validation": validation,
        }
    )


def _marked(rows: pa.Table) -> int:
    """Number of rows that belong to the source's own validation split."""
    return int(pc.sum(rows["validation"], min_count=0).as_py()) if "validation" in rows.column_names else 0


def _rows_per_batch(width: int) -> int:
    """Number of rows in a row group, for images of `width` bytes."""
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // width))


def _validated(
    rows: pa.RecordBatch, plan: ShardPlan, target: Target, function: RowFunction | None, again: bool
) -> tuple[pa.Table, Pixels, list[str]]:
    """The usable rows of a batch in the schema of a part file, their pixels, and why the other rows can't be used."""
    decoded = decode(rows, target)
    numbers = {name: number for number, name in enumerate(plan.classes)}
    names: list[str] = rows["label"].to_pylist()
    labels = np.array([numbers.get(names[row], -1) for row in decoded.good], np.int32)
    known = labels >= 0
    taken = pa.array(decoded.good, pa.int64())
    where = rows["where"].take(taken)
    outside = [
        f"{where[int(index)].as_py()}: label {names[decoded.good[index]]!r} is none of the classes "
        f"{_some(plan.classes)}"
        for index in np.flatnonzero(~known)
    ]
    pixels = decoded.pixels[known]
    digests = pixel_digests(pixels) if decoded.digests is None else decoded.digests[known]
    if function is not None and len(pixels):
        first = f"{where.filter(pa.array(known))[0].as_py()} of {plan.raw}"
        pixels = changed_images(function, pixels, first, again)
    table = pa.table(
        [
            _binary(pixels.reshape(len(pixels), math.prod(plan.shape))),
            pa.array(labels[known]),
            _binary(digests),
            _binary(_hash_sources(rows.take(taken).filter(pa.array(known)))),
            _binary(digests if function is None and decoded.digests is None else pixel_digests(pixels)),
            where.filter(pa.array(known)),
        ],
        schema=part_schema(math.prod(plan.shape)),
    )
    if plan.marked:
        is_marked = bool(rows.num_rows) and rows["split"][0].as_py() == VALIDATION
        field = part_schema(1, marked=True).field("validation")
        table = table.append_column(field, pa.array(np.full(len(table), is_marked)))
    return table, pixels, [*decoded.bad, *outside]


def _hash_sources(rows: pa.RecordBatch) -> Pixels:
    """(rows, 16) bytes: digests of rows as the source stores them, over the image file, or raw pixels and their size.

    A row has the same digest in every dataset version, whatever its image size, file name, split or label.
    """
    sizes = np.stack([rows[name].to_numpy() for name in ("height", "width", "channels")], axis=1).astype(
        "<i4"
    )
    digests = b"".join(
        hashlib.sha256(size.tobytes() + memoryview(image.as_buffer())).digest()[:16]
        for size, image in zip(sizes, rows["image"], strict=True)
    )
    return np.frombuffer(digests, np.uint8).reshape(-1, 16)


def _binary(rows: Pixels) -> pa.Array:
    """(rows, width) uint8 values as one fixed-width binary array, without a copy."""
    flat = np.ascontiguousarray(rows)
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(rows.shape[1]), len(rows), [None, pa.py_buffer(flat)]
    )


def _assign(rows: pa.RecordBatch, table: pa.Table, test_share: float) -> dict[Split, npt.NDArray[np.bool_]]:
    """Masks of the rows of `table` per split: as the source divides the rows, else by the pixels of its image."""
    if rows.num_rows and (given := rows["split"][0].as_py()):
        everything = np.ones(len(table), bool)
        return {"test": everything} if given == TEST else {"train": everything}
    second_half = binary_to_numpy(table["digest"], np.uint64)[:, 1]
    test = (second_half >> np.uint64(11)).astype(np.float64) < test_share * 2.0**53
    return {"train": ~test, "test": test}


def _add_moments(
    pixels: Pixels, sums: npt.NDArray[np.int64], squares: npt.NDArray[np.int64], sign: int = 1
) -> None:
    """Add exact sums of pixels and squared pixels per channel; sign -1 subtracts. A byte's square fits 16 bits."""
    rows = max(1, _MOMENTS_VALUES // max(1, math.prod(pixels.shape[2:])))
    for channel in range(pixels.shape[1]):
        for start in range(0, len(pixels), rows):
            values = pixels[start : start + rows, channel]
            sums[channel] += sign * values.sum(dtype=np.int64)
            squares[channel] += sign * np.square(values, dtype=np.uint16).sum(dtype=np.int64)


def _open_writer(path: Path, width: int, marked: bool) -> pq.ParquetWriter:
    # No compression of pixels: reading uncompressed pixels is a plain copy, and decompressing them takes longer than
    # that copy (docs/performance.md).
    return pq.ParquetWriter(
        path,
        part_schema(width, marked),
        compression=dict.fromkeys(part_schema(width, marked).names, "none") | {"where": "zstd"},
        use_dictionary=False,
        write_statistics=["label"],
        data_page_size=_BATCH_BYTES,
        write_page_checksum=True,
    )


def _part(folder: Path, path: Path) -> PartFile | None:
    """The manifest entry of a written file; a file without rows is deleted and has no entry."""
    if not (rows := pq.read_metadata(path).num_rows):
        path.unlink()
        return None
    return PartFile(
        path=path.relative_to(folder).as_posix(),
        rows=rows,
        bytes=path.stat().st_size,
        sha256=digest_file(path),
    )


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:10]) + (", …" if len(listed) > 10 else "")
