"""Prepare a dataset version: write raw rows as typed Parquet, then decode, validate, split and commit them.

Shards are cut by row number, so the part files of a version do not depend on the number of processes.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from training.data.images.decoding import Target, first_shape, none_readable
from training.data.manifest import write_manifest
from training.data.preparation.bad_rows import check_bad_rows
from training.data.preparation.duplicates import find_copies, refuse
from training.data.preparation.parallel import run_shards
from training.data.preparation.raw_rows import raw_batches
from training.data.preparation.row_function import RowFunction
from training.data.preparation.shards import (
    SPLITS,
    ShardOutcome,
    ShardPlan,
    transform_shard,
    without_rows,
)
from training.data.row_kinds import check_settings, make_table_version, with_profile
from training.data.sample_order import Permutation, Rows, stream_key
from training.data.sources.locate import reader
from training.data.sources.splits import TEST, VALIDATION
from training.data.sources.wording import counted
from training.errors import DataError
from training.records import DatasetVersion, PartFile, ProblemName, RawShard, Record, SourceFiles, Split
from training.settings.schema import DataSettings
from training.storage.files import atomic_file, atomic_folder, digest_file, write_text

log = logging.getLogger("evergreen.prepare")

_SHARD_ROWS = 8192
_TABLE_SHARD_ROWS = 262_144  # a row of a table is much smaller than an image
_HEAVY = 8  # with a function of the recipe, shards have an eighth of the rows, so that more CPUs compute
_SHARD_BYTES = 64 << 20
_SHARD_PIXELS = 256 << 20  # bytes of all pixels of a shard whose images have the size data.image_size
_SUBSET = 7  # random stream of the permutation that picks a subset of rows
_MIXED = 6  # random stream that shuffles the rows of a source sorted by class
_SHOWN = 5
_FEW = 64  # raw rows per batch when only the first readable row is needed
_REPEATED = ["height", "width", "channels", "label", "split"]  # columns with few distinct values


class Shard(Record):
    """Rows [start, stop) of the selected rows of one source split."""

    index: int
    split: str
    start: int
    stop: int


def plan_shards(files: SourceFiles, settings: DataSettings, heavy: bool = False) -> list[Shard]:
    """Cut the source's rows into shards of at most 8,192 images or 262,144 rows of a table, and about 64 MiB.

    With `data.image_size`, the prepared images of a shard have at most 256 MiB. `heavy`, for a recipe with a function
    `transform_rows`, makes the shards an eighth of this size. Raises :class:`DataError` when the source has no rows.
    """
    source = reader(files)
    splits = used_splits(files, settings)
    total = sum(source.count(files, split) for split in splits)
    if not total:
        raise DataError(
            f"{files.origin}: no rows. Check data.path, or remove {files.root} to fetch the source again."
        )
    by_bytes = _SHARD_BYTES * total // max(1, files.bytes)
    most = min(_TABLE_SHARD_ROWS if files.kind == "table" else _SHARD_ROWS, by_bytes)
    if settings.image_size is not None:
        most = min(most, _SHARD_PIXELS // (settings.image_size**2 * (settings.channels or 3)))
    size = max(1, most // _HEAVY if heavy else most)
    shards: list[Shard] = []
    for split in splits:
        rows = min(source.count(files, split), _limit(split, settings) or total)
        for start in range(0, rows, size):
            shards.append(Shard(index=len(shards), split=split, start=start, stop=min(rows, start + size)))
    return shards


def used_splits(files: SourceFiles, settings: DataSettings) -> tuple[str, ...]:
    """Splits of the source, without the validation split when `data.validation_split` is "ignore"."""
    ignored = {VALIDATION} if settings.validation_split == "ignore" else set()
    return tuple(split for split in reader(files).splits(files) if split not in ignored)


def write_raw(files: SourceFiles, shard: Shard, settings: DataSettings, folder: Path) -> RawShard:
    """Write one shard of raw rows as Parquet, or keep the intact file of an earlier attempt.

    Raises :class:`DataError` when a source file is damaged.
    """
    target = folder / f"raw-{shard.index:05d}.parquet"
    if not _is_whole(target):
        rows = selected_rows(files, shard, settings)
        with atomic_file(target, durable=False) as aside:  # temporary; a later attempt checks its sha256
            _write_batches(aside, reader(files).read(files, shard.split, rows))
            digest = digest_file(aside)
        write_text(_note(target), digest, durable=False)
    labels: Counter[str] = Counter()
    if files.kind not in ("table", "text"):  # their target may have as many values as rows
        for batch in raw_batches(str(target), ["label"]):
            labels.update(batch["label"].to_pylist())
    return RawShard(
        path=str(target),
        rows=pq.read_metadata(target).num_rows,
        bytes=target.stat().st_size,
        labels=dict(sorted(labels.items())),
    )


def _write_batches(file: Path, batches: Iterator[pa.RecordBatch]) -> None:
    first = next(batches)
    with pq.ParquetWriter(
        file, first.schema, compression="none", use_dictionary=_REPEATED, write_page_checksum=True
    ) as writer:
        for batch in chain([first], batches):
            writer.write_batch(batch)


def _note(shard: Path) -> Path:
    """The file with the sha256 of a shard of raw rows, which is written after the shard."""
    return shard.with_suffix(".sha256")


def _is_whole(shard: Path) -> bool:
    """Whether an earlier attempt wrote this shard of raw rows, and the file still has its recorded sha256."""
    if not shard.is_file() or not _note(shard).is_file():
        return False
    whole = digest_file(shard).encode() == _note(shard).read_bytes()
    if not whole:
        log.warning("%s: not what was written; written again from the source", shard)
    return whole


def plan_transform(
    raw: list[RawShard], files: SourceFiles, settings: DataSettings, staging: Path
) -> list[ShardPlan]:
    """Plan the transform of all shards, with the same classes and the image shape of the first readable row.

    Raises :class:`DataError` when no image can be read.
    """
    classes = files.classes or tuple(sorted({label for shard in raw for label in shard.labels}))
    target = Target(settings.image_size, settings.channels)
    shape = next(
        (
            image_shape
            for shard in raw
            for rows in raw_batches(shard.path, rows=_FEW)
            if (image_shape := first_shape(rows, target))
        ),
        None,
    )
    if shape is None:
        rows = next(raw_batches(raw[0].path, rows=1))
        raise DataError(f"{files.origin}: {none_readable(rows, target)}")
    return [
        ShardPlan(
            raw=shard.path,
            index=index,
            classes=classes,
            shape=shape,
            image_size=settings.image_size,
            channels=settings.channels,
            test_share=settings.test_share,
            folder=str(staging),
            marked=VALIDATION in used_splits(files, settings),
        )
        for index, shard in enumerate(raw)
    ]


def run_transform(
    plans: list[ShardPlan], with_ray: bool, function: RowFunction | None = None
) -> list[ShardOutcome]:
    """Run :func:`transform_shard` on all shards, as a Ray Data pipeline or in threads of this process."""
    transform = partial(transform_shard, function=function)
    return run_shards(plans, transform, ShardOutcome, with_ray, heavy=function is not None)


def make_version(
    name: str,
    identity: str,
    files: SourceFiles,
    raw: list[RawShard],
    settings: DataSettings,
    folder: Path,
    with_ray: bool,
    listing: Path | None = None,
    problem: ProblemName = "classification",
    function: RowFunction | None = None,
) -> DatasetVersion:
    """Transform all raw shards and atomically commit the dataset version at `folder`.

    `function` is the recipe's `transform_rows`. Raises :class:`SettingError` when the function fails, and for settings
    or a problem that this kind of source does not have. Raises :class:`DataError` that names the first rows which
    break a rule, or classes without rows; then nothing is left at `folder`. The CSV file `listing` lists all rows that
    break a rule, except if the error names them all because they are at most 5 unusable rows.
    """
    check_settings(files, settings, problem)
    with atomic_folder(folder) as staging:
        for split in SPLITS:
            (staging / split).mkdir()
        if files.kind == "table":
            version = make_table_version(
                name, identity, files, raw, settings, folder, staging, with_ray, listing, problem, function
            )
        else:
            version = _make_image_version(
                name, identity, files, raw, settings, folder, staging, with_ray, listing, function
            )
        check_classes(version)
        version = with_profile(version, staging, files, settings)
        write_manifest(version, staging)
    if listing is not None:
        listing.unlink(missing_ok=True)  # left by an earlier attempt
    return version


def _make_image_version(
    name: str,
    identity: str,
    files: SourceFiles,
    raw: list[RawShard],
    settings: DataSettings,
    folder: Path,
    staging: Path,
    with_ray: bool,
    listing: Path | None,
    function: RowFunction | None,
) -> DatasetVersion:
    """Write the part files of a dataset of images to the folder `staging`; `folder` is its final path."""
    plans = plan_transform(raw, files, settings, staging)
    outcomes = run_transform(plans, with_ray, function)
    check_bad_rows(outcomes, settings.max_dropped_share, listing)
    outcomes, left_out = _without_copies(plans, outcomes, files.origin, settings, listing)
    version = _summarise(name, identity, files, plans[0], outcomes, left_out, folder)
    return version.model_copy(update={"transform": "" if function is None else function.digest})


def _without_copies(
    plans: list[ShardPlan],
    outcomes: list[ShardOutcome],
    origin: str,
    settings: DataSettings,
    listing: Path | None,
) -> tuple[list[ShardOutcome], tuple[str, ...]]:
    """The outcomes after copies were removed, and the reason for each removed row.

    Raises :class:`DataError` when there are copies and `data.duplicates` is "refuse".
    """
    parts: dict[Split, list[PartFile]] = {
        split: [outcome.parts[split] for outcome in outcomes if split in outcome.parts] for split in SPLITS
    }
    copies = find_copies(Path(plans[0].folder), parts, plans[0].classes)
    if copies is None:
        return outcomes, ()
    if settings.duplicates == "refuse":
        raise refuse(copies, origin, listing)
    log.warning("%s left out as copies", counted(len(reasons := copies.reasons()), "row"))
    return [
        without_rows(plan, outcome, copies.unwanted) for plan, outcome in zip(plans, outcomes, strict=True)
    ], reasons


def _summarise(
    name: str,
    identity: str,
    files: SourceFiles,
    plan: ShardPlan,
    outcomes: list[ShardOutcome],
    left_out: tuple[str, ...],
    folder: Path,
) -> DatasetVersion:
    """The dataset version from the shards' counts and sums.

    Mean and standard deviation are of pixels scaled to 0..1: std² = E[x²] - E[x]².
    """
    bad = [row for outcome in outcomes for row in outcome.bad]
    counts = {
        split: tuple(map(sum, zip(*(o.label_counts[split] for o in outcomes), strict=True)))
        for split in SPLITS
    }
    pixels = sum(counts["train"]) * plan.shape[1] * plan.shape[2] * 255
    mean = [sum(o.sums[channel] for o in outcomes) / max(1, pixels) for channel in range(plan.shape[0])]
    power = [
        sum(o.squares[channel] for o in outcomes) / max(1, pixels * 255) for channel in range(plan.shape[0])
    ]
    return DatasetVersion(
        name=name,
        fingerprint=identity,
        path=str(folder),
        classes=plan.classes,
        shape=plan.shape,
        parts={split: tuple(o.parts[split] for o in outcomes if split in o.parts) for split in SPLITS},
        label_counts=counts,
        mean=tuple(mean),
        std=tuple(math.sqrt(max(p - m * m, 1e-12)) for p, m in zip(power, mean, strict=True)),
        source_digest=files.digest,
        source_origin=files.origin,
        validation_rows=sum(outcome.validation for outcome in outcomes) if plan.marked else None,
        dropped=(*bad, *left_out),
    )


def check_classes(version: DatasetVersion) -> None:
    """Raises :class:`DataError` when a class has no rows in a split."""
    for split in SPLITS:
        counts = zip(version.classes, version.label_counts[split], strict=True)
        empty = [name for name, count in counts if not count]
        if empty:
            raise DataError(
                f"{version.source_origin}: no {split} rows of class {', '.join(empty[:_SHOWN])}. Every class needs "
                "rows in both splits: add some, remove the class, or raise data.max_train_rows / data.max_test_rows."
            )


def _limit(split: str, settings: DataSettings) -> int | None:
    if split:
        return settings.max_test_rows if split == TEST else settings.max_train_rows
    # The source has no splits: a hash of a row's content decides the split later, so limits hold on average only. The
    # limit is not the sum of both: data.test_share divides these rows, so one split would exceed its own limit.
    limits = []
    if settings.max_train_rows:
        limits.append(round(settings.max_train_rows / (1 - settings.test_share)))
    if settings.max_test_rows and settings.test_share:
        limits.append(round(settings.max_test_rows / settings.test_share))
    return min(limits, default=None)


@lru_cache(maxsize=1)  # 8 bytes per row; a process that writes many shards draws the subset once
def _subset(total: int, limit: int) -> Rows:
    """A pseudo-random subset of `limit` of `total` row numbers, the same in every run, in ascending order."""
    return np.sort(Permutation(total, stream_key(_SUBSET))(np.arange(limit, dtype=np.int64)))


def selected_rows(files: SourceFiles, shard: Shard, settings: DataSettings) -> list[int]:
    """Source row numbers of a shard, out of all rows or out of the fixed random subset that the settings ask for.

    The row numbers are in the source's order, except for image folders. An image folder is listed class by class, so
    its rows are shuffled: training that reads a dataset in its order (`data.feed=stream`) would otherwise see one
    class after another.
    """
    total = reader(files).count(files, shard.split)
    limit = min(total, _limit(shard.split, settings) or total)
    positions = np.arange(shard.start, shard.stop, dtype=np.int64)
    if files.kind == "folder":
        positions = Permutation(limit, stream_key(_MIXED))(positions)
    if limit < total:
        positions = _subset(total, limit)[positions]
    chosen: list[int] = positions.tolist()
    return chosen
