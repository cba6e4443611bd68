"""Prepare a dataset version of text: find the classes, train or take the tokenizer, and transform the shards."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from training.data.manifest import TOKENIZER, write_manifest
from training.data.preparation.bad_rows import check_bad_rows
from training.data.preparation.parallel import run_shards
from training.data.preparation.prepare import check_classes, used_splits
from training.data.preparation.raw_rows import raw_batches
from training.data.preparation.row_function import RowFunction
from training.data.preparation.shards import SPLITS
from training.data.row_kinds import check_settings, with_profile
from training.data.sources.splits import VALIDATION
from training.data.sources.wording import counted
from training.data.tables.preparation import distinct_labels, with_warnings
from training.data.tables.statistics import moments, part_columns
from training.data.tables.targets import check_target
from training.data.tables.typed_copy import Notes, read_notes
from training.data.tables.values import FEATURE
from training.data.text.copies import copied_texts
from training.data.text.plain_texts import COUNTED, NO_TARGET
from training.data.text.shards import TextOutcome, TextPlan, split_rows, transform_text_shard, usable
from training.data.text.text_check import given_tokenizer
from training.data.text.tokenizers import Prepared, train
from training.errors import DataError
from training.records import (
    DatasetVersion,
    PartFile,
    ProblemName,
    RawShard,
    SourceFiles,
    Split,
    TableColumn,
    TableSchema,
    TextEncoding,
)
from training.settings.schema import DataSettings
from training.storage.files import atomic_folder, write_text

log = logging.getLogger("evergreen.prepare")

Parts = dict[Split, tuple[PartFile, ...]]


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

    Raises :class:`SettingError` for settings that text does not have. Raises :class:`DataError` when the share of rows
    without text or target exceeds `data.max_dropped_share`, for a target that the problem can't learn, for a
    tokenizer that can't be used, and for a split or class without rows.
    """
    assert function is None  # the fingerprint refuses transform_rows for text
    check_settings(files, settings, problem)
    notes = read_notes(Path(files.root))
    rows = sum(shard.rows for shard in raw)
    classes = check_target(distinct_labels(raw), notes, files.origin, problem, rows)
    with atomic_folder(folder) as staging:
        for split in SPLITS:
            (staging / split).mkdir()
        tokenizer = _tokenizer(files, raw, settings, notes)
        write_text(staging / TOKENIZER, tokenizer.content)
        plans = _plans(files, raw, settings, staging, notes, classes, tokenizer)
        outcomes = run_shards(plans, transform_text_shard, TextOutcome, with_ray)
        check_bad_rows(outcomes, settings.max_dropped_share, listing)
        parts = _part_files(outcomes, files.origin)
        version = DatasetVersion(
            name=name,
            fingerprint=identity,
            path=str(folder),
            classes=classes or (),
            shape=(settings.max_tokens,),
            parts=parts,
            label_counts=_label_counts(outcomes),
            mean=(),
            std=(),
            source_digest=files.digest,
            source_origin=files.origin,
            validation_rows=sum(outcome.validation for outcome in outcomes) if plans[0].marked else None,
            dropped=tuple(row for outcome in outcomes for row in outcome.bad),
            problem=problem,
            table=with_warnings(
                _schema(
                    staging, parts, plans[0], tokenizer, not files.tokenizer, sum(o.cut for o in outcomes)
                ),
                copied_texts(staging, parts),
                files.origin,
            ),
        )
        check_classes(version)
        version = with_profile(version, staging, files, settings)
        write_manifest(version, staging)
    if listing is not None:
        listing.unlink(missing_ok=True)  # left by an earlier attempt
    return version


def _tokenizer(files: SourceFiles, raw: Sequence[RawShard], settings: DataSettings, notes: Notes) -> Prepared:
    if files.tokenizer:
        return given_tokenizer(files, settings)
    texts = _train_texts(raw, settings, notes)
    return train(texts, settings.vocabulary, settings.max_tokens)


def _train_texts(raw: Sequence[RawShard], settings: DataSettings, notes: Notes) -> Iterator[str]:
    """The texts of the train split, without rows that can't be used."""
    text = column_of(notes)
    for shard in raw:
        for rows in raw_batches(shard.path):
            good, _ = usable(rows, text, notes.target)
            chosen = split_rows(good, text, settings.test_share).get("train")
            if chosen is not None:
                yield from chosen[f"{FEATURE}{text}"].to_pylist()


def column_of(notes: Notes) -> str:
    """The name of the column of text."""
    (text,) = notes.columns
    return text


def _plans(
    files: SourceFiles,
    raw: Sequence[RawShard],
    settings: DataSettings,
    staging: Path,
    notes: Notes,
    classes: tuple[str, ...] | None,
    tokenizer: Prepared,
) -> list[TextPlan]:
    return [
        TextPlan(
            raw=shard.path,
            index=index,
            text=column_of(notes),
            target=notes.target or COUNTED,
            classes=classes,
            test_share=settings.test_share,
            folder=str(staging),
            marked=VALIDATION in used_splits(files, settings),
            tokenizer=tokenizer.digest,
            length=settings.max_tokens,
            padding=tokenizer.padding,
            counted=notes.target == NO_TARGET,
        )
        for index, shard in enumerate(raw)
    ]


def _part_files(outcomes: Sequence[TextOutcome], origin: str) -> Parts:
    """The part files of each split, in the order of the shards. Raises :class:`DataError` for an empty split."""
    parts: Parts = {
        split: tuple(outcome.parts[split] for outcome in outcomes if split in outcome.parts)
        for split in SPLITS
    }
    for split in SPLITS:
        if not parts[split]:
            raise DataError(
                f"{origin}: no {split} rows. Add rows, or change data.test_share, data.max_train_rows or "
                "data.max_test_rows."
            )
    return parts


def _label_counts(outcomes: Sequence[TextOutcome]) -> dict[Split, tuple[int, ...]]:
    """Number of rows of each class, by split."""
    return {
        split: tuple(map(sum, zip(*(outcome.label_counts[split] for outcome in outcomes), strict=True)))
        for split in SPLITS
    }


def _schema(
    staging: Path, parts: Parts, plan: TextPlan, tokenizer: Prepared, trained: bool, cut: int
) -> TableSchema:
    encoding = TextEncoding(
        length=plan.length,
        vocabulary=tokenizer.vocabulary,
        padding=tokenizer.padding,
        tokenizer=tokenizer.digest,
        trained=trained,
        cut=cut,
    )
    if cut:
        log.info(
            "%s of the train split have more than %d tokens and were cut", counted(cut, "row"), plan.length
        )
    schema = TableSchema(
        target=plan.target, columns=(TableColumn(name=plan.text, kind="text"),), text=encoding
    )
    if plan.classes is not None:
        return schema
    target_moments = moments([labels.to_numpy() for labels in part_columns(staging, parts["train"], "label")])
    if plan.counted and not target_moments.mean:
        raise DataError(
            "no text of the train split has a second token, so there is nothing to predict. Give longer texts."
        )
    return schema.model_copy(update={"target_mean": target_moments.mean, "target_std": target_moments.std})
