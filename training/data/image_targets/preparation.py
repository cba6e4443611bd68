"""Prepare a dataset version of images with a number to predict for each image.

The images are first prepared as for a classifier: the classes of a shard are the distinct numbers in that shard.
After copies have been removed, each part file is rewritten with the numbers in place of the class positions.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from training.data.manifest import write_manifest
from training.data.preparation.bad_rows import check_bad_rows
from training.data.preparation.duplicates import find_copies, refuse
from training.data.preparation.prepare import plan_transform, run_transform
from training.data.preparation.row_function import RowFunction
from training.data.preparation.shards import SPLITS, ShardOutcome, ShardPlan, without_rows
from training.data.row_kinds import check_settings, with_profile
from training.data.sources.wording import counted
from training.data.tables.statistics import moments, part_columns
from training.errors import DataError
from training.machine import available_cpus
from training.records import DatasetVersion, PartFile, ProblemName, RawShard, SourceFiles, Split, TableSchema
from training.settings.schema import DataSettings
from training.storage.files import atomic_folder, digest_file, temporary_folder

log = logging.getLogger("evergreen.prepare")

Parts = dict[Split, tuple[PartFile, ...]]
Numbers = npt.NDArray[np.float64]

_PAGE_BYTES = 8 << 20  # of pixels, as in the part files of a classifier


def make_version(
    name: str,
    identity: str,
    files: SourceFiles,
    raw: list[RawShard],
    settings: DataSettings,
    folder: Path,
    with_ray: bool,
    listing: Path | None,
    problem: ProblemName,
    function: RowFunction | None = None,
) -> DatasetVersion:
    """Transform all raw shards and atomically commit the dataset version at `folder`.

    Part files have a float64 column `label`. Raises the errors of
    :func:`training.data.preparation.prepare.make_version`; copies of an image with different numbers are treated as
    copies with different classes.
    """
    check_settings(files, settings, problem)
    with atomic_folder(folder) as staging:
        for split in SPLITS:
            (staging / split).mkdir()
        plans = [
            plan.model_copy(update={"classes": tuple(shard.labels)})
            for plan, shard in zip(plan_transform(raw, files, settings, staging), raw, strict=True)
        ]
        outcomes = run_transform(plans, with_ray, function)
        check_bad_rows(outcomes, settings.max_dropped_share, listing)
        outcomes, left_out = _without_copies(plans, outcomes, files.origin, settings, listing)
        parts = _with_numbers(plans, outcomes)
        _check_splits(parts, files.origin)
        mean, std = _pixel_moments(plans[0], outcomes, sum(part.rows for part in parts["train"]))
        version = DatasetVersion(
            name=name,
            fingerprint=identity,
            path=str(folder),
            classes=(),
            shape=plans[0].shape,
            parts=parts,
            label_counts=dict.fromkeys(SPLITS, ()),
            mean=mean,
            std=std,
            source_digest=files.digest,
            source_origin=files.origin,
            validation_rows=sum(outcome.validation for outcome in outcomes) if plans[0].marked else None,
            dropped=(*(row for outcome in outcomes for row in outcome.bad), *left_out),
            problem=problem,
            table=_target(staging, parts["train"], files.target),
            transform="" if function is None else function.digest,
        )
        version = with_profile(version, staging, files, settings)
        write_manifest(version, staging)
    if listing is not None:
        listing.unlink(missing_ok=True)  # left by an earlier attempt
    return version


def _without_copies(
    plans: list[ShardPlan],
    outcomes: list[ShardOutcome],
    origin: str,
    settings: DataSettings,
    listing: Path | None,
) -> tuple[list[ShardOutcome], tuple[str, ...]]:
    """The outcomes after copies were removed, and the reason for each removed row.

    Copies are equal images in two splits or with different numbers. Raises :class:`DataError` when there are copies
    and `data.duplicates` is "refuse".
    """
    distinct = np.unique(np.concatenate([_numbers(plan) for plan in plans]))
    with temporary_folder("copies") as keys:
        for plan, outcome in zip(plans, outcomes, strict=True):
            _write_keys(plan, outcome, distinct, keys)
        copies = find_copies(keys, _parts(outcomes), [f"{number:.10g}" for number in distinct])
    if copies is None:
        return outcomes, ()
    if settings.duplicates == "refuse":
        raise refuse(copies, origin, listing)
    log.warning("%s left out as copies", counted(len(reasons := copies.reasons()), "row"))
    return [
        without_rows(plan, outcome, copies.unwanted) for plan, outcome in zip(plans, outcomes, strict=True)
    ], reasons


def _write_keys(plan: ShardPlan, outcome: ShardOutcome, distinct: Numbers, keys: Path) -> None:
    """Copy a shard's part files, without images, to the folder `keys`.

    Labels of the copies are positions in `distinct`, so that equal numbers have equal labels in all shards.
    """
    places = np.searchsorted(distinct, _numbers(plan)).astype(np.int32)
    for part in outcome.parts.values():
        file = Path(plan.folder) / part.path
        names = [name for name in pq.read_schema(file).names if name not in ("image", "source")]
        table = pq.read_table(file, columns=names)
        labels = pa.array(places[table["label"].to_numpy()])
        at = table.schema.get_field_index("label")
        (keys / part.path).parent.mkdir(exist_ok=True)
        pq.write_table(table.set_column(at, table.schema.field(at), labels), keys / part.path)


def _with_numbers(plans: list[ShardPlan], outcomes: list[ShardOutcome]) -> Parts:
    """Write all part files again, with float64 numbers in the column `label`."""

    def replaced(pair: tuple[ShardPlan, ShardOutcome]) -> ShardOutcome:
        plan, outcome = pair
        parts = {split: _replace_labels(plan, part) for split, part in outcome.parts.items()}
        return outcome.model_copy(update={"parts": parts})

    with ThreadPoolExecutor(available_cpus()) as pool:
        return _parts(list(pool.map(replaced, zip(plans, outcomes, strict=True))))


def _replace_labels(plan: ShardPlan, part: PartFile) -> PartFile:
    """Write one part file again, with the number of each row instead of its position in `plan.classes`."""
    numbers, file = _numbers(plan), Path(plan.folder) / part.path
    aside = file.with_suffix(".numbers")
    with pq.ParquetFile(file, page_checksum_verification=True) as source:
        schema = source.schema_arrow
        at = schema.get_field_index("label")
        schema = schema.set(at, pa.field("label", pa.float64(), nullable=False))
        kinds = dict.fromkeys(schema.names, "none") | {"where": "zstd"}
        with pq.ParquetWriter(
            aside,
            schema,
            compression=kinds,
            use_dictionary=False,
            write_statistics=["label"],
            data_page_size=_PAGE_BYTES,
            write_page_checksum=True,
        ) as writer:
            for group in range(source.num_row_groups):
                rows = source.read_row_group(group)
                labels = pa.array(numbers[rows["label"].to_numpy()])
                writer.write_table(
                    rows.set_column(at, schema.field(at), labels), row_group_size=len(rows) or 1
                )
    aside.replace(file)
    return part.model_copy(update={"bytes": file.stat().st_size, "sha256": digest_file(file)})


def _numbers(plan: ShardPlan) -> Numbers:
    """The numbers whose texts are the classes of a shard."""
    return np.array([float(text) for text in plan.classes])


def _parts(outcomes: list[ShardOutcome]) -> Parts:
    return {
        split: tuple(outcome.parts[split] for outcome in outcomes if split in outcome.parts)
        for split in SPLITS
    }


def _check_splits(parts: Parts, origin: str) -> None:
    for split in SPLITS:
        if not parts[split]:
            raise DataError(
                f"{origin}: no {split} rows. Add images, or change data.test_share, data.max_train_rows or "
                "data.max_test_rows."
            )


def _target(staging: Path, parts: Sequence[PartFile], name: str) -> TableSchema:
    """A schema of the target alone, with its mean and standard deviation over the train split."""
    target_moments = moments([labels.to_numpy() for labels in part_columns(staging, parts, "label")])
    return TableSchema(
        target=name, columns=(), target_mean=target_moments.mean, target_std=target_moments.std
    )


def _pixel_moments(
    plan: ShardPlan, outcomes: list[ShardOutcome], rows: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, of pixel/255 over the `rows` rows of the train split."""
    pixels = rows * plan.shape[1] * plan.shape[2]
    sums, squares = (
        np.array([getattr(outcome, name) for outcome in outcomes]).sum(axis=0) for name in ("sums", "squares")
    )
    mean = sums / (pixels * 255)
    std = np.sqrt(np.maximum(squares / (pixels * 255**2) - mean**2, 1e-12))
    return tuple(mean.tolist()), tuple(std.tolist())
