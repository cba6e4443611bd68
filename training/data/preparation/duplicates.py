"""Duplicate images in a dataset that break a rule: copies in two splits, or copies with different labels.

Two rows are copies of one image when their `pixels` columns are equal: the same pixels after conversion and resizing.
In: part files of a dataset version. Out: the copies, and a CSV file that lists all of them for a person.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from training.data.dataset import part_schema
from training.data.sources.splits import TEST, TRAIN, VALIDATION
from training.data.sources.wording import counted
from training.errors import DataError
from training.records import PartFile, Split
from training.storage.files import atomic_file

TWO_SPLITS, TWO_LABELS = "in two splits", "under two labels"
SPLITS = (TRAIN, VALIDATION, TEST)
_SHOWN = 5


class CopiedRow(NamedTuple):
    """A row whose image occurs more than once in the dataset; all copies of an image have the same `pixels`."""

    rule: str
    pixels: bytes
    split: str  # train, val or test
    label: str
    where: str


@dataclass(frozen=True)
class Copies:
    """All copies of images that break a rule, and per split the digests of rows that `data.duplicates=drop` removes.

    Removed are the copies that would make the model look better than it is: test copies of training or validation
    images, and validation copies of training images. Of an image with two labels, all rows are removed.
    """

    rows: tuple[CopiedRow, ...]
    unwanted: dict[str, pa.Array]

    def reasons(self) -> tuple[str, ...]:
        """For each row that `data.duplicates=drop` removes, its location and the reason."""
        gone = {split: set(digests.to_pylist()) for split, digests in self.unwanted.items()}
        return tuple(f"{row.where}: {_WHY[row.rule]}" for row in self.rows if row.pixels in gone[row.split])


_WHY = {
    TWO_SPLITS: "a copy of an image in another split (data.duplicates=drop)",
    TWO_LABELS: "the same image has another label elsewhere (data.duplicates=drop)",
}


def find_copies(
    folder: Path, parts: Mapping[Split, Sequence[PartFile]], classes: Sequence[str]
) -> Copies | None:
    """Copies in the part files in `folder` that are in two splits or have two labels; None when there are none."""
    keys = _by_split(folder, parts)
    two_labels = _with_two_labels(
        pa.concat_tables(table.select(["pixels", "label"]) for table in keys.values())
    )
    digests = {split: table["pixels"] for split, table in keys.items()}
    seen = pa.chunked_array([*digests[TRAIN].chunks, *digests[VALIDATION].chunks], type=two_labels.type)
    leaked = {
        TEST: _in_both(digests[TEST], seen),
        VALIDATION: _in_both(digests[VALIDATION], digests[TRAIN]),
    }
    two_splits = pc.unique(pa.concat_arrays(list(leaked.values())))
    two_splits = two_splits.filter(pc.invert(pc.is_in(two_splits, value_set=two_labels)))
    if not len(two_splits) and not len(two_labels):
        return None
    rules = [(TWO_SPLITS, two_splits), (TWO_LABELS, two_labels)]
    rows = sorted(row for rule, copied in rules for row in _rows(folder, parts, rule, copied, classes))
    unwanted = {split: pa.concat_arrays([copied, two_labels]) for split, copied in leaked.items()}
    return Copies(tuple(rows), {TRAIN: two_labels} | unwanted)


def refuse(copies: Copies, origin: str, listing: Path | None) -> DataError:
    """The error to raise for `copies`. It names the first images, and the CSV file `listing` of all, if given."""
    shown = [_sentence(rows, rule) for rule in (TWO_SPLITS, TWO_LABELS) if (rows := _of_rule(copies, rule))]
    where = ""
    if listing is not None:
        write_listing(listing, copies)
        where = f"\nAll of them are listed in {listing}."
    return DataError(
        f"{origin}: "
        + "\n".join(shown)
        + where
        + "\nRemove the copies from the source, or set data.duplicates=drop to leave out the test or validation copies "
        "of training images and all rows with conflicting labels."
    )


def write_listing(file: Path, copies: Copies) -> None:
    """Write all rows of `copies` as CSV with the columns rule, image, split, label and where."""
    with atomic_file(file) as aside, aside.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["rule", "image", "split", "label", "where"])
        writer.writerows([row.rule, row.pixels.hex(), *row[2:]] for row in copies.rows)


def _of_rule(copies: Copies, rule: str) -> list[list[CopiedRow]]:
    """The rows that break `rule`, grouped by image."""
    groups: dict[bytes, list[CopiedRow]] = {}
    for row in copies.rows:
        if row.rule == rule:
            groups.setdefault(row.pixels, []).append(row)
    return list(groups.values())


def _sentence(images: list[list[CopiedRow]], rule: str) -> str:
    """Message text: how many images break `rule`, and the rows of the first few images."""
    count = counted(len(images), "image is", "images are")
    sentence = {
        TWO_SPLITS: f"{count} in more than one split, which would make the test score too high",
        TWO_LABELS: f"{count} in the data under two labels, of which at most one can be right",
    }[rule]
    more = [f"and {len(images) - _SHOWN} more"] if len(images) > _SHOWN else []
    return f"{sentence}:\n  " + "\n  ".join([*map(_group, images[:_SHOWN]), *more])


def _group(rows: Sequence[CopiedRow]) -> str:
    """Message text for the copies of one image, train rows first; it gives the labels when they differ."""
    ordered = sorted(rows, key=lambda row: (SPLITS.index(row.split), row.where))
    differ = len({row.label for row in rows}) > 1
    return " and ".join(f"{row.where} ({row.label})" if differ else row.where for row in ordered[:_SHOWN])


def _by_split(folder: Path, parts: Mapping[Split, Sequence[PartFile]]) -> dict[str, pa.Table]:
    """Tables with the digest of the pixels and the label of each row of train, val and test."""
    train, test = (_read(folder, parts[split], ["pixels", "label"]) for split in ("train", "test"))
    is_marked = train["validation"]
    return {TRAIN: train.filter(pc.invert(is_marked)), VALIDATION: train.filter(is_marked), TEST: test}


def _read(folder: Path, parts: Sequence[PartFile], columns: list[str]) -> pa.Table:
    """Columns of the part files, and a column `validation` that marks the source's own validation rows."""
    tables = [part_schema(1, marked=True).empty_table().select([*columns, "validation"])]
    for part in parts:
        names = pq.read_schema(folder / part.path).names
        marks = ["validation"] if "validation" in names else []
        table = pq.read_table(folder / part.path, columns=[*columns, *marks])
        tables.append(table if marks else table.append_column(*_unmarked(len(table))))
    return pa.concat_tables(tables)


def _unmarked(rows: int) -> tuple[pa.Field, pa.Array]:
    return part_schema(1, marked=True).field("validation"), pa.array(np.zeros(rows, np.bool_))


def _in_both(digests: pa.ChunkedArray, others: pa.ChunkedArray) -> pa.Array:
    common: pa.Array = pc.unique(digests.filter(pc.is_in(digests, value_set=others)))
    return common


def _with_two_labels(keys: pa.Table) -> pa.Array:
    """Digests that occur with more than one label."""
    digests = keys["pixels"]
    none = pa.array([], digests.type)
    if len(pc.unique(digests)) == len(digests):
        return none
    labels = (
        keys.group_by(["pixels", "label"]).aggregate([]).group_by("pixels").aggregate([("label", "count")])
    )
    ambiguous: pa.ChunkedArray = labels.filter(pc.greater(labels["label_count"], 1))["pixels"]
    return pa.concat_arrays([none, *ambiguous.chunks])


def _rows(
    folder: Path,
    parts: Mapping[Split, Sequence[PartFile]],
    rule: str,
    digests: pa.Array,
    classes: Sequence[str],
) -> Iterator[CopiedRow]:
    """The rows that have one of `digests`, read from one part file at a time."""
    for split, listed in parts.items() if len(digests) else ():
        for part in listed:
            table = _read(folder, [part], ["pixels", "label", "where"])
            chosen = table.filter(pc.is_in(table["pixels"], value_set=digests)).to_pylist()
            for row in chosen:
                role = VALIDATION if row["validation"] else split
                yield CopiedRow(rule, row["pixels"], role, classes[row["label"]], row["where"])
