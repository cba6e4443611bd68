"""Transform one shard of a table's raw rows into part files of a dataset version: check, digest, split and write.

Shards are independent of each other, so one shard is the unit of parallel work. Memory use is one batch of rows.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from training.data.images.decoding import binary_to_numpy
from training.data.preparation.row_function import RowFunction
from training.data.preparation.shards import SPLITS
from training.data.sources.splits import TEST, VALIDATION
from training.data.tables.changed_features import changed_features
from training.data.tables.keys import KEY
from training.data.tables.typed_copy import GROUP, WEIGHT
from training.data.tables.values import FEATURE, TYPES, as_text
from training.records import ColumnKind, PartFile, Record, Split
from training.storage.files import digest_file

_BATCH_ROWS = 65_536
_BATCH_BYTES = 256 << 20  # of the columns of the source, at 8 bytes a value
_NO_TIME = np.int64(np.iinfo(np.int64).min)


class TablePlan(Record):
    """The input of one transform task. `classes` is None for a regression.

    `columns` are the features of the source, `weight` its column of weights (None without), and `made` the features
    that the recipe's `transform_rows` computes from the columns; None without the function. `marked`: part files have
    the column `validation`. `keyed`: they have the column `key`.
    """

    raw: str
    index: int
    target: str
    columns: dict[str, ColumnKind]
    classes: tuple[str, ...] | None
    test_share: float
    folder: str
    marked: bool
    made: dict[str, ColumnKind] | None = None
    keyed: bool = False
    weight: str | None = None

    @property
    def batch_rows(self) -> int:
        """See :class:`training.data.preparation.raw_rows.ShardInput`."""
        return max(1, min(_BATCH_ROWS, _BATCH_BYTES // (8 * max(1, len(self.columns)))))

    @property
    def features(self) -> dict[str, ColumnKind]:
        """The features of part files."""
        return self.columns if self.made is None else self.made


class TableOutcome(Record):
    """The part files of one transform task; `bad` has location and reason for each row that can't be used.

    `parts` has no entry for a split without rows. `label_counts[split][k]` counts the rows of class number k, and
    `validation` counts the rows that are marked for validation, and `weights` has the sum of the rows' weights.
    """

    index: int
    parts: dict[Split, PartFile]
    label_counts: dict[Split, tuple[int, ...]]
    bad: tuple[str, ...]
    validation: int = 0
    weights: dict[Split, float] = Field({}, description="sum of the rows' weights")


def table_part_schema(plan: TablePlan) -> pa.Schema:
    """Schema of the part files; `digest`, which divides the rows, is that of the row's group, key or content.

    It is the digest of the group if the source has groups, else `key` if the rows have keys, else `source`.
    """
    features = [pa.field(f"{FEATURE}{name}", TYPES[kind]) for name, kind in plan.features.items()]
    label = pa.float64() if plan.classes is None else pa.int32()
    own = [
        pa.field("label", label, nullable=False),
        pa.field("digest", pa.binary(16), nullable=False),
        pa.field("source", pa.binary(16), nullable=False),  # digest of the row's features in the source
        pa.field("where", pa.string(), nullable=False),
    ]
    keys = [pa.field(KEY, pa.binary(16), nullable=False)] if plan.keyed else []
    marks = [pa.field("validation", pa.bool_(), nullable=False)] if plan.marked else []
    weights = [pa.field(WEIGHT, pa.float64(), nullable=False)] if plan.weight is not None else []
    return pa.schema([*features, *own, *keys, *marks, *weights])


def transform_table_shard(
    plan: TablePlan, batches: Iterator[pa.RecordBatch], function: RowFunction | None = None
) -> TableOutcome:
    """Check, split and write the rows of one shard, given as batches of raw rows.

    `function` is the recipe's `transform_rows`, applied to the features. Raises :class:`SettingError` if the function
    fails.
    """
    folder, schema = Path(plan.folder), table_part_schema(plan)
    classes = plan.classes or ()
    counts = {split: np.zeros(len(classes), np.int64) for split in SPLITS}
    paths = {split: folder / split / f"part-{plan.index:05d}.parquet" for split in SPLITS}
    writers = {split: _open_writer(path, schema) for split, path in paths.items()}
    bad: list[str] = []
    validation, weights = 0, dict.fromkeys(SPLITS, 0.0)
    try:
        for number, rows in enumerate(batches):
            table, wrong = _checked(rows, plan, schema, function, again=number == 0)
            bad += wrong
            for split, mask in _assign(rows, table, plan.test_share).items():
                part = table.filter(pa.array(mask))
                if len(part):
                    writers[split].write_table(part)
                if classes:
                    counts[split] += np.bincount(part["label"].to_numpy(), minlength=len(classes))
                validation += int(pc.sum(part["validation"], min_count=0).as_py()) if plan.marked else 0
                if plan.weight is not None:
                    weights[split] += float(part[WEIGHT].to_numpy().sum())
    finally:
        for writer in writers.values():
            writer.close()
    return TableOutcome(
        index=plan.index,
        parts={split: part for split, path in paths.items() if (part := _part(folder, path))},
        label_counts={split: tuple(map(int, count)) for split, count in counts.items()},
        bad=tuple(bad),
        validation=validation,
        weights=weights if plan.weight is not None else {},
    )


def _checked(
    rows: pa.RecordBatch, plan: TablePlan, schema: pa.Schema, function: RowFunction | None, again: bool
) -> tuple[pa.Table, list[str]]:
    """The usable rows of a batch in the schema of a part file, and a message for each other row."""
    present = rows["label"].is_valid()
    bad = [no_target(where, plan.target) for where in rows["where"].filter(pc.invert(present)).to_pylist()]
    good = rows.filter(present)
    source = feature_digests(good, plan.columns)
    columns = {
        **{f"{FEATURE}{name}": column for name, column in _features(good, plan, function, again).items()},
        "label": _labels(good["label"], plan.classes),
        "digest": next((good[name] for name in (GROUP, KEY) if name in good.schema.names), source),
        "source": source,
        "where": good["where"],
    }
    if plan.keyed:
        columns[KEY] = good[KEY]
    if plan.weight is not None:
        columns[WEIGHT] = good[WEIGHT]
    if plan.marked:
        is_marked = bool(rows.num_rows) and rows["split"][0].as_py() == VALIDATION
        columns["validation"] = pa.array(np.full(good.num_rows, is_marked))
    return pa.table(columns, schema=schema), bad


def _features(
    good: pa.RecordBatch, plan: TablePlan, function: RowFunction | None, again: bool
) -> dict[str, pa.Array]:
    """The feature columns of a part file, by name."""
    given = {name: good[f"{FEATURE}{name}"] for name in plan.columns}
    if function is None or plan.made is None:
        return given
    first = f"{good['where'][0].as_py() if good.num_rows else ''} of {plan.raw}"
    return changed_features(function, pa.table(given), plan.made, first, again)


def no_target(where: str, target: str) -> str:
    """Message text for a row without a target."""
    return f"{where}: column {target!r}, the target, is empty"


def _labels(values: pa.Array, classes: tuple[str, ...] | None) -> pa.Array:
    if classes is None:
        return values.cast(pa.float64())
    return pc.index_in(as_text(values), value_set=pa.array(classes, pa.string())).cast(pa.int32())


def feature_digests(rows: pa.RecordBatch, columns: Mapping[str, ColumnKind]) -> pa.Array:
    """First half of the sha256 of each row's features; does not depend on the order of the columns.

    Equal numbers have equal digests: 1 and 1.0, and also 0 and -0.
    """
    parts = [_fixed_width(rows[f"{FEATURE}{name}"], columns[name]) for name in sorted(columns)]
    matrix = np.ascontiguousarray(np.concatenate(parts, axis=1))
    digests = b"".join(hashlib.sha256(row).digest()[:16] for row in matrix)
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(matrix), [None, pa.py_buffer(digests)])


def _fixed_width(values: pa.Array, kind: ColumnKind) -> npt.NDArray[np.uint8]:
    """(rows, width) bytes that are equal for equal values; a missing value has bytes that no value has."""
    rows = len(values)
    if kind == "category":
        coded = values.dictionary_encode()
        names = [hashlib.sha256(name.encode()).digest()[:16] for name in coded.dictionary.to_pylist()]
        table = np.frombuffer(b"".join([*names, bytes(16)]), np.uint8).reshape(-1, 16)
        codes: npt.NDArray[np.int32] = pc.fill_null(coded.indices, len(names)).to_numpy(zero_copy_only=False)
        return np.asarray(table[codes])
    if kind == "number":
        # Adding 0 turns -0 into 0. Every NaN gets the same bit pattern.
        numbers = values.to_numpy(zero_copy_only=False).astype("<f8") + 0.0
        row_bytes = np.where(np.isnan(numbers), np.float64("nan"), numbers).astype("<f8").view(np.uint8)
    elif kind == "boolean":
        row_bytes = pc.fill_null(values.cast(pa.int8()), 2).to_numpy(zero_copy_only=False).astype(np.uint8)
    else:
        times = pc.fill_null(values.cast(pa.int64()), int(_NO_TIME)).to_numpy(zero_copy_only=False)
        row_bytes = times.astype("<i8").view(np.uint8)
    return row_bytes.reshape(rows, -1) if rows else np.zeros((0, 1), np.uint8)


def _assign(rows: pa.RecordBatch, table: pa.Table, test_share: float) -> dict[Split, npt.NDArray[np.bool_]]:
    """Masks of the rows of `table` by split: the source's splits if it has splits, else by `digest`."""
    if rows.num_rows and (given := rows["split"][0].as_py()):
        everything = np.ones(len(table), bool)
        return {"test": everything} if given == TEST else {"train": everything}
    if not len(table):
        return {}
    second_half = binary_to_numpy(table["digest"], np.uint64)[:, 1]
    test = (second_half >> np.uint64(11)).astype(np.float64) < test_share * 2.0**53
    return {"train": ~test, "test": test}


def _open_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    texts = [field.name for field in schema if pa.types.is_string(field.type) and field.name != "where"]
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        use_dictionary=texts,
        write_statistics=["label"],
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
