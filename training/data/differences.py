"""What differs between the rows of two dataset versions: counted by row, and said in words.

In: two dataset versions whose part files are on this machine. Out: how many rows are new, gone, changed and the same.
A row is found again by its identity: its key, where both versions have the same key, else its content. Of two rows
with one identity, one is a changed row if its features or its target differ.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from training.data.row_digests import Digests, content_in, feature_names, first_halves, part_tables
from training.data.sources.wording import counted
from training.records import ColumnKind, DatasetVersion, Record
from training.storage.files import digest_json

if TYPE_CHECKING:
    import pyarrow as pa

_LARGEST_CHANGE = 0.5  # share of the rows that vanish in a night without a person's doing
_AS_MANY = 0.8  # so many new rows for each that vanished mean that a job rewrote the rows
_ODD = np.uint64(0x9E3779B97F4A7C15)  # multiplication by an odd number loses no information
_SHOWN = 3


class ClassDifference(Record):
    """Rows of one class that are new or gone; `new`: the old version lacks the class, `gone`: the new one lacks it."""

    name: str
    added: int
    removed: int
    new: bool = False
    gone: bool = False


class Differences(Record):
    """The rows of a newer dataset version against those of an older one, test rows included.

    `kept` rows are in both versions, `changed` among them have other features or another target. `replaced` says that
    most rows vanished and about as many new ones came, as after a job that rewrote a column: without a key, such rows
    can't be told from new rows. It is never true where rows have a key, or where two tables have other columns and no
    row in common.
    """

    unit: str = Field(description="a row: image, row or text")
    key: tuple[str, ...] = Field(
        (), description="columns of the key by which rows were found; empty: their content"
    )
    added: int
    removed: int
    changed: int
    kept: int
    relabelled: int = Field(0, description="kept rows that are of another class now")
    classes: tuple[ClassDifference, ...] = Field((), description="classes with rows that are new or gone")
    new_columns: tuple[str, ...] = ()
    gone_columns: tuple[str, ...] = ()
    replaced: bool = False

    def words(self) -> str:
        """The differences as one line: `+250 images (crosses: new class, 150), 0 removed`."""
        rows = f"{self.unit}s"
        if self.replaced:
            rest = f"{self.added:,} others came: without a key, rewritten {rows} can't be told from new ones"
            return f"{self.removed:,} of {counted(self.removed + self.kept, self.unit)} vanished and {rest}"
        parts = []
        if self.key:
            changed = f"{counted(self.changed, self.unit)} changed"
            parts.append(f"{changed}, {self.added:,} new{self._of_classes(True)}")
        else:
            parts.append(f"+{counted(self.added, self.unit)}{self._of_classes(True)}")
        parts.append(f"{self.removed:,} removed{self._of_classes(False)}")
        if self.changed and not self.key:
            parts.append(f"{self.changed:,} with another target")
        for names, what in ((self.new_columns, "new"), (self.gone_columns, "gone")):
            if names:
                listed = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
                parts.append(f"{what} {'column' if len(names) == 1 else 'columns'} {listed}")
        return ", ".join(parts)

    def _of_classes(self, came: bool) -> str:
        """The classes that came or vanished with these rows, in brackets; empty if there are none."""
        if came:
            found = [f"{one.name}: new class, {one.added:,}" for one in self.classes if one.new]
        else:
            found = [f"{one.name}: class gone, {one.removed:,}" for one in self.classes if one.gone]
        more = [f"{len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        return f" ({'; '.join([*found[:_SHOWN], *more])})" if found else ""


def differences(old: DatasetVersion, new: DatasetVersion) -> Differences:
    """Compare the rows of two dataset versions, of all splits. Memory use is about 100 bytes a row.

    Rows are found again by the key if both versions have the same key. Otherwise, of tables whose columns differ, they
    are found by the columns that both have. Raises :class:`DataError` when a part file can't be read, as after `gc`.
    """
    by_key, columns = is_same_key(old, new), common_columns(old, new)
    return compared(old, new, *(rows_of(version, by_key, columns) for version in (old, new)))


def compared(old: DatasetVersion, new: DatasetVersion, before: "Rows", after: "Rows") -> Differences:
    """The differences of the rows `after` of `new` from the rows `before` of `old`; no part file is read."""
    same_before, same_after = _matched(before.everything(), after.everything())
    rest_before, rest_after = ~same_before, ~same_after
    again_before, again_after = _matched(before.identity[rest_before], after.identity[rest_after])
    changed = int(again_after.sum())
    gone, came = np.flatnonzero(rest_before)[~again_before], np.flatnonzero(rest_after)[~again_after]
    kept = int(same_after.sum()) + changed
    ours, theirs = _columns_of(old), _columns_of(new)
    other_columns = common_columns(old, new) is not None
    rewritten = len(gone) > _LARGEST_CHANGE * len(before.identity) and len(came) >= _AS_MANY * len(gone)
    return Differences(
        unit=_unit(new),
        key=new.key if is_same_key(old, new) else (),
        added=len(came),
        removed=len(gone),
        changed=changed,
        kept=kept,
        relabelled=kept - _of_same_class(before, after) if new.classes else 0,
        classes=_by_class(old, new, before.label[gone], after.label[came]),
        new_columns=tuple(name for name in theirs if name not in ours),
        gone_columns=tuple(name for name in ours if name not in theirs),
        replaced=rewritten and not new.key and not (other_columns and not kept),
    )


class Rows(NamedTuple):
    """Digests of rows: of their identity, their content, and their target, as the bits of a number or a class."""

    identity: Digests
    content: Digests
    label: Digests

    def of_class(self) -> Digests:
        """One digest of identity and target of each row."""
        return self.identity * _ODD ^ self.label

    def everything(self) -> Digests:
        """One digest of identity, content and target of each row."""
        return (self.identity * _ODD ^ self.content) * _ODD ^ self.label


def _of_same_class(before: Rows, after: Rows) -> int:
    return int(_matched(before.of_class(), after.of_class())[1].sum())


def rows_of(
    version: DatasetVersion, by_key: bool, columns: Mapping[str, ColumnKind] | None, of_image: str = "digest"
) -> Rows:
    """The rows of a version, identified by their key or by their content: in `columns`, or, with None, all of it.

    `of_image` is the column of part files with the digest of an image. Raises :class:`DataError` when a part file can't
    be read.
    """
    identity, content, label = ([np.empty(0, np.uint64)] for _ in range(3))
    names = class_numbers(version.classes)
    has_target = version.text is None or version.table.target  # type: ignore[union-attr]  # text has a table
    stored = of_image if version.has_images else "source"
    for split in version.parts:
        wanted = [stored, "label", *(["key"] if by_key else [])]
        for table in part_tables(version, split, [*wanted, *feature_names(columns or {})]):
            own = first_halves(table[stored]) if columns is None else content_in(table, columns)
            content.append(own)
            identity.append(first_halves(table["key"]) if by_key else own)
            label.append(_labels(table["label"], names) if has_target else np.zeros(len(table), np.uint64))
    return Rows(*(np.concatenate(parts) for parts in (identity, content, label)))


def class_numbers(names: Iterable[str]) -> Digests:
    """Numbers that stand for the names of classes in all versions."""
    return np.array([int(digest_json(name)[:16], 16) for name in names], np.uint64)


def is_same_key(old: DatasetVersion, new: DatasetVersion) -> bool:
    """Whether rows are found again by their key."""
    return bool(new.key) and new.key == old.key


def _labels(column: "pa.ChunkedArray", names: Digests) -> Digests:
    """Numbers that are equal for equal classes of any two versions, or the bits of the numbers to predict."""
    labels = column.to_numpy()
    numbers: Digests = names[labels] if len(names) else (labels.astype(np.float64) + 0.0).view(np.uint64)
    return numbers


def _matched(old: Digests, new: Digests) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Masks of the rows of each version that the other one has, too; each row is the match of one row at most."""
    before, after = _numbered(old), _numbered(new)
    return np.isin(before, after), np.isin(after, before)


def _numbered(digests: Digests) -> Digests:
    """Distinct digests: those of equal rows are changed by the number of equal rows before them."""
    order = np.argsort(digests, kind="stable")
    ascending = digests[order]
    places = np.arange(len(ascending), dtype=np.uint64)
    first = np.searchsorted(ascending, ascending).astype(np.uint64)
    numbered = np.empty_like(digests)
    numbered[order] = ascending + (places - first) * _ODD
    return numbered


def _by_class(
    old: DatasetVersion, new: DatasetVersion, gone: Digests, came: Digests
) -> tuple[ClassDifference, ...]:
    made = []
    names = list(dict.fromkeys([*new.classes, *old.classes]))
    for name, number in zip(names, class_numbers(names), strict=True):
        one = ClassDifference(
            name=name,
            added=int((came == number).sum()),
            removed=int((gone == number).sum()),
            new=name not in old.classes,
            gone=name not in new.classes,
        )
        made += [one] if one.added or one.removed else []
    return tuple(made)


def _columns_of(version: DatasetVersion) -> dict[str, ColumnKind]:
    """Columns of a table's source that are features, with their kinds; empty for images and texts."""
    if version.table is None or version.has_images or version.text is not None:
        return {}
    return dict(version.table.given) or {column.name: column.kind for column in version.table.raw.columns}


def common_columns(old: DatasetVersion, new: DatasetVersion) -> dict[str, ColumnKind] | None:
    """The columns by which rows of two tables are compared if their columns differ; None: all of the content."""
    ours, theirs = _columns_of(old), _columns_of(new)
    if ours == theirs or old.transform or new.transform:
        return None
    return {name: kind for name, kind in ours.items() if theirs.get(name) == kind}


def _unit(version: DatasetVersion) -> str:
    if version.has_images:
        return "image"
    return "text" if version.text is not None else "row"
