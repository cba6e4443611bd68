"""Images that a dataset has twice where they must not be: in both splits, or under two labels.

Two rows are copies of one image when their pixels are equal after conversion and resizing, as their `digest` columns
say. In: part files of a dataset version. Out: the copies, and a CSV file that lists all of them for a person.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from training.dataset import part_schema
from training.errors import DataError
from training.files import atomic_file
from training.records import PartFile, Split
from training.sources.wording import counted

BOTH_SPLITS, TWO_LABELS = "in both splits", "under two labels"
_SHOWN = 5


class CopiedRow(NamedTuple):
    """One row whose image the dataset has more than once; `digest` groups the copies of an image."""

    rule: str
    digest: bytes
    split: Split
    label: str
    where: str


@dataclass(frozen=True)
class Copies:
    """All rows of images that break a rule, and the digests of the images by the rule."""

    rows: tuple[CopiedRow, ...]
    both_splits: pa.Array
    two_labels: pa.Array

    def unwanted(self) -> dict[Split, pa.Array]:
        """Digests of the rows to leave out of each split: the test copies, and all rows with conflicting labels."""
        digests = pa.concat_arrays([self.both_splits, self.two_labels])
        return {"train": self.two_labels, "test": digests}

    def reasons(self) -> tuple[str, ...]:
        """Why each row was left out, in words."""
        return tuple(
            f"{row.where}: {_WHY[row.rule]}"
            for row in self.rows
            if row.rule == TWO_LABELS or row.split == "test"
        )


_WHY = {
    BOTH_SPLITS: "a copy of a training image (data.duplicates=drop)",
    TWO_LABELS: "the same image has another label elsewhere (data.duplicates=drop)",
}


def find_copies(
    folder: Path, parts: Mapping[Split, Sequence[PartFile]], classes: Sequence[str]
) -> Copies | None:
    """Images of the part files in `folder` that are in both splits or under two labels, or None without any."""
    keys = {split: _read(folder, listed, ["digest", "label"]) for split, listed in parts.items()}
    two_labels = _with_two_labels(pa.concat_tables(keys.values()))
    train, test = keys["train"]["digest"], keys["test"]["digest"]
    both_splits = pc.unique(test.filter(pc.is_in(test, value_set=train)))
    both_splits = both_splits.filter(pc.invert(pc.is_in(both_splits, value_set=two_labels)))
    if not len(both_splits) and not len(two_labels):
        return None
    rows = [
        row
        for rule, digests in ((BOTH_SPLITS, both_splits), (TWO_LABELS, two_labels))
        for split, listed in parts.items()
        for row in _rows(folder, listed, split, rule, digests, classes)
    ]
    return Copies(tuple(sorted(rows)), both_splits, two_labels)


def refuse(copies: Copies, origin: str, listing: Path | None) -> DataError:
    """The error that names the first copies and the file `listing`, which then lists all of them."""
    shown = [_sentence(copies, rule, digests) for rule, digests in _by_rule(copies) if len(digests)]
    where = ""
    if listing is not None:
        write_listing(listing, copies)
        where = f"\nAll of them are listed in {listing}."
    return DataError(
        f"{origin}: "
        + "\n".join(shown)
        + where
        + "\nRemove the copies from the source, or set data.duplicates=drop to leave out the test copies of training "
        "images and all rows with conflicting labels."
    )


def write_listing(file: Path, copies: Copies) -> None:
    """Write all rows of `copies` as CSV with the columns rule, image, split, label and where."""
    with atomic_file(file) as aside, aside.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["rule", "image", "split", "label", "where"])
        writer.writerows([row.rule, row.digest.hex(), *row[2:]] for row in copies.rows)


def _by_rule(copies: Copies) -> tuple[tuple[str, pa.Array], ...]:
    return (BOTH_SPLITS, copies.both_splits), (TWO_LABELS, copies.two_labels)


def _sentence(copies: Copies, rule: str, digests: pa.Array) -> str:
    """How many images break `rule`, and the rows of the first few."""
    count = counted(len(digests), "image is", "images are")
    said = {
        BOTH_SPLITS: f"{count} in both the train and the test split, which would flatter the model",
        TWO_LABELS: f"{count} in the data under two labels, of which at most one can be right",
    }[rule]
    groups: dict[bytes, list[CopiedRow]] = {}
    for row in copies.rows:
        if row.rule == rule:
            groups.setdefault(row.digest, []).append(row)
    shown = [_group(rows) for rows in list(groups.values())[:_SHOWN]]
    more = [f"and {len(groups) - _SHOWN} more"] if len(groups) > _SHOWN else []
    return f"{said}:\n  " + "\n  ".join([*shown, *more])


def _group(rows: Sequence[CopiedRow]) -> str:
    """The copies of one image, the train rows first; labels only where they differ."""
    ordered = sorted(rows, key=lambda row: (row.split == "test", row.where))
    differ = len({row.label for row in rows}) > 1
    return " and ".join(f"{row.where} ({row.label})" if differ else row.where for row in ordered[:_SHOWN])


def _read(folder: Path, parts: Sequence[PartFile], columns: list[str]) -> pa.Table:
    if not parts:
        return part_schema(1).empty_table().select(columns)
    return pa.concat_tables([pq.read_table(folder / part.path, columns=columns) for part in parts])


def _with_two_labels(keys: pa.Table) -> pa.Array:
    """Digests that stand beside more than one label."""
    digests = keys["digest"]
    none = pa.array([], digests.type)
    if len(pc.unique(digests)) == len(digests):
        return none
    labels = (
        keys.group_by(["digest", "label"]).aggregate([]).group_by("digest").aggregate([("label", "count")])
    )
    found: pa.ChunkedArray = labels.filter(pc.greater(labels["label_count"], 1))["digest"]
    return pa.concat_arrays([none, *found.chunks])


def _rows(
    folder: Path,
    parts: Sequence[PartFile],
    split: Split,
    rule: str,
    digests: pa.Array,
    classes: Sequence[str],
) -> Iterator[CopiedRow]:
    for part in parts if len(digests) else ():
        table = pq.read_table(folder / part.path, columns=["digest", "label", "where"])
        chosen = table.filter(pc.is_in(table["digest"], value_set=digests))
        columns = (chosen[name].to_pylist() for name in ("digest", "label", "where"))
        for digest, label, where in zip(*columns, strict=True):
            yield CopiedRow(rule, digest, split, classes[label], where)
