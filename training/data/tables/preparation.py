"""Prepare a dataset version of a table: find the classes, transform the shards, and describe the columns."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from training.data.preparation.bad_rows import check_bad_rows
from training.data.preparation.parallel import run_shards
from training.data.preparation.prepare import used_splits
from training.data.preparation.raw_rows import raw_batches
from training.data.preparation.row_function import RowFunction
from training.data.preparation.shards import SPLITS
from training.data.sources.splits import VALIDATION
from training.data.tables.changed_features import find_columns
from training.data.tables.shards import TableOutcome, TablePlan, transform_table_shard
from training.data.tables.statistics import table_schema
from training.data.tables.suspicions import suspicions
from training.data.tables.targets import check_target
from training.data.tables.typed_copy import Notes, read_notes
from training.errors import DataError
from training.records import DatasetVersion, PartFile, ProblemName, RawShard, SourceFiles, Split, TableSchema
from training.settings.schema import DataSettings

log = logging.getLogger("evergreen.prepare")


def make_table_version(
    name: str,
    identity: str,
    files: SourceFiles,
    raw: Sequence[RawShard],
    settings: DataSettings,
    folder: Path,
    staging: Path,
    with_ray: bool,
    listing: Path | None,
    problem: ProblemName,
    function: RowFunction | None = None,
) -> DatasetVersion:
    """Write the part files of a table's dataset version to the folder `staging`; `folder` is the version's final path.

    `function` is the recipe's `transform_rows`. Raises :class:`SettingError` when the function fails. Raises
    :class:`DataError` when the share of rows without a target exceeds `data.max_dropped_share`, for a target that the
    problem can't learn, and for a split without rows.
    """
    notes = read_notes(Path(files.root))
    classes = check_target(
        distinct_labels(raw), notes, files.origin, problem, sum(shard.rows for shard in raw)
    )
    plans = _plans(raw, files, settings, staging, notes, classes, function)
    outcomes = run_shards(
        plans,
        partial(transform_table_shard, function=function),
        TableOutcome,
        with_ray,
        heavy=function is not None,
    )
    check_bad_rows(outcomes, settings.max_dropped_share, listing)
    parts = _part_files(outcomes)
    _check_splits(parts, files.origin)
    _check_weights(outcomes, notes.weight, files.origin)
    schema = table_schema(
        staging, parts["train"], notes.target, plans[0].features, with_target=classes is None
    )
    if function is not None:
        schema = schema.model_copy(update={"given": notes.columns})
    if notes.weight is not None:
        schema = schema.model_copy(update={"weight": notes.weight})
    schema = with_warnings(schema, suspicions(staging, parts, schema, len(classes or ())), files.origin)
    return DatasetVersion(
        name=name,
        fingerprint=identity,
        path=str(folder),
        classes=classes or (),
        shape=(len(schema.columns),),
        parts=parts,
        label_counts=_label_counts(outcomes),
        mean=(),
        std=(),
        source_digest=files.digest,
        source_origin=files.origin,
        validation_rows=sum(outcome.validation for outcome in outcomes) if plans[0].marked else None,
        dropped=tuple(row for outcome in outcomes for row in outcome.bad),
        problem=problem,
        table=schema,
        transform="" if function is None else function.digest,
        key=notes.key,
    )


def _part_files(outcomes: Sequence[TableOutcome]) -> dict[Split, tuple[PartFile, ...]]:
    """The part files of each split, in the order of the shards."""
    return {
        split: tuple(outcome.parts[split] for outcome in outcomes if split in outcome.parts)
        for split in SPLITS
    }


def _label_counts(outcomes: Sequence[TableOutcome]) -> dict[Split, tuple[int, ...]]:
    """Number of rows of each class, by split."""
    return {
        split: tuple(map(sum, zip(*(outcome.label_counts[split] for outcome in outcomes), strict=True)))
        for split in SPLITS
    }


def _plans(
    raw: Sequence[RawShard],
    files: SourceFiles,
    settings: DataSettings,
    staging: Path,
    notes: Notes,
    classes: tuple[str, ...] | None,
    function: RowFunction | None,
) -> list[TablePlan]:
    made = None
    if function is not None:
        first = next(raw_batches(raw[0].path))
        made = find_columns(function, first, notes.columns, f"{first['where'][0].as_py()} of {raw[0].path}")
    return [
        TablePlan(
            raw=shard.path,
            index=index,
            target=notes.target,
            columns=notes.columns,
            classes=classes,
            test_share=settings.test_share,
            folder=str(staging),
            marked=VALIDATION in used_splits(files, settings),
            made=made,
            keyed=bool(notes.key),
            weight=notes.weight,
        )
        for index, shard in enumerate(raw)
    ]


def distinct_labels(raw: Sequence[RawShard]) -> pa.Array:
    """The distinct values of the target in all shards, without missing values."""
    labels = [pc.unique(batch["label"]) for shard in raw for batch in raw_batches(shard.path, ["label"])]
    return pc.unique(pa.chunked_array(labels)).drop_null()


def _check_splits(parts: dict[Split, tuple[PartFile, ...]], origin: str) -> None:
    for split in SPLITS:
        if not parts[split]:
            raise DataError(
                f"{origin}: no {split} rows. Add rows, or change data.test_share, data.max_train_rows or "
                "data.max_test_rows."
            )


def _check_weights(outcomes: Sequence[TableOutcome], weight: str | None, origin: str) -> None:
    for split in SPLITS:
        if weight is not None and not any(outcome.weights[split] for outcome in outcomes):
            raise DataError(
                f"{origin}: column {weight!r}, the weight, is 0 in all {split} rows, so none of them counts. Give "
                f"some rows a weight above 0, or leave out weight={weight!r}."
            )


def with_warnings(schema: TableSchema, warnings: tuple[str, ...], origin: str) -> TableSchema:
    """The schema with `warnings` about the data, each of which is logged with the source's `origin`."""
    for warning in warnings:
        log.warning("%s: %s", origin, warning)
    return schema.model_copy(update={"warnings": warnings})
