"""Check the rows of a table before preparation: the target of every row, from the typed copy.

The source's `fetch` has checked all other values. If the rows' content divides them, only preparation can check that
each class has rows in both splits.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from training.data.preparation.bad_rows import refuse_rows, too_many
from training.data.preparation.prepare import plan_shards, selected_rows
from training.data.sources.locate import reader
from training.data.tables.shards import no_target
from training.data.tables.targets import check_target
from training.data.tables.typed_copy import read_labels, read_missing, read_notes
from training.data.tables.values import as_text
from training.errors import DataError
from training.records import ProblemName, SourceFiles, TableColumn, TableSchema
from training.settings.schema import DataSettings

_SHOWN = 5


def check_table(files: SourceFiles, settings: DataSettings, problem: ProblemName) -> TableSchema:
    """Check the targets; returns the columns that the prepared table will have, without statistics.

    Raises :class:`DataError` when the share of rows without a target exceeds `data.max_dropped_share`, for a target
    that the problem can't learn, and for a class without rows in a split of the source.
    """
    target = read_notes(Path(files.root)).target

    def messages(rows: pa.RecordBatch) -> list[str]:
        return [no_target(where, target) for where in rows["where"].to_pylist()]

    return check_rows(files, settings, problem, messages)


def check_rows(
    files: SourceFiles,
    settings: DataSettings,
    problem: ProblemName,
    messages: Callable[[pa.RecordBatch], list[str]],
    needed: str | None = None,
) -> TableSchema:
    """As :func:`check_table`; `messages` makes a message for each row that can't be used.

    These are the rows without a target, and those without a value in the column `needed` of the typed copy, if given.
    """
    notes = read_notes(Path(files.root))
    rows, labels = _selected(files, settings)
    missing = {
        split: np.asarray(values.is_null()) | _lacking(files, split, rows[split], needed)
        for split, values in labels.items()
    }
    _check_missing(files, settings, rows, missing, messages)
    everything = pa.chunked_array([labels[split] for split in labels])
    total = len(everything)
    classes = check_target(pc.unique(everything).drop_null(), notes, files.origin, problem, total)
    for split, values in labels.items():
        if classes and split in ("train", "test"):
            usable = values.filter(pa.array(~missing[split]))
            present = set(as_text(pc.unique(usable)).to_pylist())
            if absent := [name for name in classes if name not in present]:
                raise DataError(
                    f"{files.origin}: no {split} rows of class {', '.join(absent[:_SHOWN])}. Every class needs rows in "
                    "both splits: add some, remove the class, or raise data.max_train_rows / data.max_test_rows."
                )
        elif classes and not split:
            _check_divisible(files, values.filter(pa.array(~missing[split])))
    columns = tuple(TableColumn(name=name, kind=kind) for name, kind in notes.columns.items())
    return TableSchema(target=notes.target, columns=columns, weight=notes.weight)


def _check_divisible(files: SourceFiles, targets: pa.Array) -> None:
    """Raise :class:`DataError` for a class of one row, among rows that are yet to be divided into train and test."""
    counts = pc.value_counts(targets)
    single = sorted(as_text(counts.field("values").filter(pc.equal(counts.field("counts"), 1))).to_pylist())
    if single:
        listed = ", ".join(single[:_SHOWN])
        raise DataError(
            f"{files.origin}: only one row of class {listed}. Every class needs rows in both splits, train and test: "
            "add rows, or remove the class."
        )


def _selected(files: SourceFiles, settings: DataSettings) -> tuple[dict[str, list[int]], dict[str, pa.Array]]:
    """Row numbers and targets, by split, of the rows that preparation will select."""
    rows: dict[str, list[int]] = {}
    for shard in plan_shards(files, settings):
        rows.setdefault(shard.split, []).extend(selected_rows(files, shard, settings))
    labels = {
        split: read_labels(Path(files.root), split).combine_chunks().take(pa.array(chosen, pa.int64()))
        for split, chosen in rows.items()
    }
    return rows, labels


def _lacking(files: SourceFiles, split: str, rows: list[int], column: str | None) -> npt.NDArray[np.bool_]:
    """Mask of the rows that have no value in `column`; none of them without a column."""
    if column is None:
        return np.zeros(len(rows), bool)
    return read_missing(Path(files.root), split, column)[np.array(rows, np.int64)]


def _check_missing(
    files: SourceFiles,
    settings: DataSettings,
    rows: dict[str, list[int]],
    missing: dict[str, npt.NDArray[np.bool_]],
    messages: Callable[[pa.RecordBatch], list[str]],
) -> None:
    total = sum(map(len, missing.values()))
    if not too_many(sum(int(mask.sum()) for mask in missing.values()), total, settings.max_dropped_share):
        return
    bad = [
        message
        for split, mask in missing.items()
        for batch in reader(files).read(files, split, np.array(rows[split], np.int64)[mask].tolist())
        for message in messages(batch)
    ]
    raise refuse_rows(bad, total, settings.max_dropped_share, None)
