"""Transform one shard of raw texts into part files of a dataset version: check, digest, tokenize, split and write.

Shards are independent of each other, so one shard is the unit of parallel work. Memory use is one batch of rows.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from training.data.manifest import TOKENIZER
from training.data.preparation.shards import SPLITS
from training.data.sources.splits import TEST, VALIDATION
from training.data.tables.values import FEATURE, as_text
from training.data.text.tokenizers import Encoder, Ids, read_content
from training.records import PartFile, Record, Split
from training.storage.files import digest_file

TOKENS = "tokens"  # column of part files: the int32 token ids of a row as one binary value, little-endian
_BATCH_ROWS = 8192


class TextPlan(Record):
    """The input of one transform task. `text` and `target` name columns; `classes` is None for a regression.

    `tokenizer` is the sha256 of the file `tokenizer.json` in `folder`, and `padding` its id of padding. `marked`: part
    files have the column `validation`. `counted`: the label of a row is the number of its tokens after the first,
    without padding.
    """

    raw: str
    index: int
    text: str
    target: str
    classes: tuple[str, ...] | None
    test_share: float
    folder: str
    marked: bool
    tokenizer: str
    length: int
    padding: int
    counted: bool

    @property
    def batch_rows(self) -> int:
        """See :class:`training.data.preparation.raw_rows.ShardInput`."""
        return _BATCH_ROWS


class TextOutcome(Record):
    """The part files of one transform task; `bad` has location and reason for each row that can't be used.

    `parts` has no entry for a split without rows. `label_counts[split][k]` counts the rows of class number k, `cut` the
    train rows that were cut, and `validation` the rows that are marked for validation.
    """

    index: int
    parts: dict[Split, PartFile]
    label_counts: dict[Split, tuple[int, ...]]
    bad: tuple[str, ...]
    cut: int = 0
    validation: int = 0


def text_part_schema(plan: TextPlan) -> pa.Schema:
    """Schema of the part files; `digest` and `source` are the first half of the sha256 of the text."""
    label = pa.float64() if plan.classes is None else pa.int32()
    fields = [
        pa.field(f"{FEATURE}{plan.text}", pa.string(), nullable=False),
        pa.field(TOKENS, pa.binary(4 * plan.length), nullable=False),
        pa.field("label", label, nullable=False),
        pa.field("digest", pa.binary(16), nullable=False),
        pa.field("source", pa.binary(16), nullable=False),
        pa.field("where", pa.string(), nullable=False),
    ]
    return pa.schema(
        [*fields, *([pa.field("validation", pa.bool_(), nullable=False)] if plan.marked else [])]
    )


def transform_text_shard(plan: TextPlan, batches: Iterator[pa.RecordBatch]) -> TextOutcome:
    """Check, tokenize, split and write the rows of one shard, given as batches of raw rows."""
    folder, schema = Path(plan.folder), text_part_schema(plan)
    encoder = Encoder(read_content(folder / TOKENIZER, plan.tokenizer))
    classes = plan.classes or ()
    counts = {split: np.zeros(len(classes), np.int64) for split in SPLITS}
    paths = {split: folder / split / f"part-{plan.index:05d}.parquet" for split in SPLITS}
    writers = {split: _open_writer(path, schema) for split, path in paths.items()}
    bad: list[str] = []
    cut, validation = 0, 0
    try:
        for rows in batches:
            good, wrong = usable(rows, plan.text, plan.target)
            bad += wrong
            for split, part in split_rows(good, plan.text, plan.test_share).items():
                if not part.num_rows:
                    continue
                table, longer = _tokenized(part, plan, schema, encoder)
                writers[split].write_table(table)
                cut += longer if split == "train" else 0
                if classes:
                    counts[split] += np.bincount(table["label"].to_numpy(), minlength=len(classes))
                validation += int(pc.sum(table["validation"]).as_py()) if plan.marked else 0
    finally:
        for writer in writers.values():
            writer.close()
    return TextOutcome(
        index=plan.index,
        parts={split: part for split, path in paths.items() if (part := _part(folder, path))},
        label_counts={split: tuple(map(int, count)) for split, count in counts.items()},
        bad=tuple(bad),
        cut=cut,
        validation=validation,
    )


def usable(rows: pa.RecordBatch, text: str, target: str) -> tuple[pa.RecordBatch, list[str]]:
    """The rows that have a text and a target, and a message for each other row, in their order."""
    texts, labels = rows[f"{FEATURE}{text}"].is_valid(), rows["label"].is_valid()
    good = pc.and_(texts, labels)
    wrong = pc.invert(good)
    present = zip(texts.filter(wrong).to_pylist(), labels.filter(wrong).to_pylist(), strict=True)
    bad = [
        f"{where}: {_empty(text, target, has_text, has_target)}"
        for where, (has_text, has_target) in zip(
            rows["where"].filter(wrong).to_pylist(), present, strict=True
        )
    ]
    return rows.filter(good), bad


def _empty(text: str, target: str, has_text: bool, has_target: bool) -> str:
    """Message text for a row without a text, a target or both."""
    if has_text or has_target:
        name, what = (target, "target") if has_text else (text, "text")
        return f"column {name!r} is empty, and every row needs a {what}"
    return f"columns {text!r} and {target!r} are empty, and every row needs a text and a target"


def split_rows(rows: pa.RecordBatch, text: str, test_share: float) -> dict[Split, pa.RecordBatch]:
    """The rows by split: the source's splits if it has splits, else by the digest of the text."""
    if not rows.num_rows:
        return {}
    if given := rows["split"][0].as_py():
        return {"test" if given == TEST else "train": rows}
    second_half = _digests(rows[f"{FEATURE}{text}"]).view(np.uint64)[:, 1]
    test = (second_half >> np.uint64(11)).astype(np.float64) < test_share * 2.0**53
    return {"train": rows.filter(pa.array(~test)), "test": rows.filter(pa.array(test))}


def _tokenized(
    rows: pa.RecordBatch, plan: TextPlan, schema: pa.Schema, encoder: Encoder
) -> tuple[pa.Table, int]:
    """The rows in the schema of a part file, and how many of them were cut."""
    texts = rows[f"{FEATURE}{plan.text}"]
    encoded, digests = encoder.encode(texts.to_pylist()), _binary(_digests(texts))
    columns = {
        f"{FEATURE}{plan.text}": texts,
        TOKENS: _binary(encoded.ids.astype("<i4").view(np.uint8)),
        "label": (
            _predicted(encoded.ids, plan.padding) if plan.counted else _labels(rows["label"], plan.classes)
        ),
        "digest": digests,
        "source": digests,
        "where": rows["where"],
    }
    if plan.marked:
        columns["validation"] = pa.array(np.full(rows.num_rows, rows["split"][0].as_py() == VALIDATION))
    return pa.table(columns, schema=schema), encoded.cut


def _labels(values: pa.Array, classes: tuple[str, ...] | None) -> pa.Array:
    if classes is None:
        return values.cast(pa.float64())
    return pc.index_in(as_text(values), value_set=pa.array(classes, pa.string())).cast(pa.int32())


def _predicted(ids: Ids, padding: int) -> pa.Array:
    return pa.array((ids[:, 1:] != padding).sum(axis=1).astype(np.float64))


def _digests(texts: pa.Array) -> npt.NDArray[np.uint8]:
    """(rows, 16) bytes: first half of the sha256 of each text."""
    digests = b"".join(hashlib.sha256(text.encode()).digest()[:16] for text in texts.to_pylist())
    return np.frombuffer(digests, np.uint8).reshape(-1, 16)


def _binary(rows: npt.NDArray[np.uint8]) -> pa.Array:
    """(rows, width) bytes as one fixed-width binary array."""
    flat = pa.py_buffer(np.ascontiguousarray(rows))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(rows.shape[1]), len(rows), [None, flat])


def _open_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        use_dictionary=False,
        write_statistics=["label"],
        write_page_checksum=True,
    )


def _part(folder: Path, path: Path) -> PartFile | None:
    """The manifest entry of a written file; a file without rows is deleted and has no entry."""
    if not (rows := pq.read_metadata(path).num_rows):
        path.unlink()
        return None
    name, size = path.relative_to(folder).as_posix(), path.stat().st_size
    return PartFile(path=name, rows=rows, bytes=size, sha256=digest_file(path))
