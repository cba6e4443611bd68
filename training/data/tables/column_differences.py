"""Columns that a model's table has and the rows of tonight lack, or the other way round."""

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from training.data.tables.values import TYPES
from training.records import ColumnKind, TableColumn, TableSchema

_REMEDY = "drop=[...] of the Table leaves a column out; a column that is gone by mistake has to be repaired"


class ColumnDifferences(NamedTuple):
    """Names of the columns that are new and gone, and name, earlier kind and present kind of those of another kind."""

    new: tuple[str, ...]
    gone: tuple[str, ...]
    other_kind: tuple[tuple[str, ColumnKind, ColumnKind], ...]
    shared: int

    def __bool__(self) -> bool:
        """Whether there is any difference."""
        return bool(self.new or self.gone or self.other_kind)

    def words(self) -> str:
        """All differences in one line, with the remedies; empty if there are none."""
        if not self:
            return ""
        parts = [
            f"{word}: {', '.join(names)}" for word, names in (("new", self.new), ("gone", self.gone)) if names
        ]
        parts += [f"{name} is a {now}, and was a {before}" for name, before, now in self.other_kind]
        missing = (
            "; its values of a column that is gone or of another kind count as missing"
            if self.gone or self.other_kind
            else ""
        )
        return f"{'; '.join(parts)}. The champion is scored by its own columns{missing}. {_REMEDY}"


def column_differences(theirs: TableSchema, ours: TableSchema) -> ColumnDifferences:
    """The differences of the columns `ours` of a dataset from those of a model; their order does not count."""
    before, now = ({column.name: column.kind for column in table.raw.columns} for table in (theirs, ours))
    return ColumnDifferences(
        new=tuple(name for name in now if name not in before),
        gone=tuple(name for name in before if name not in now),
        other_kind=tuple(
            (name, before[name], now[name]) for name in before if before[name] != now.get(name, before[name])
        ),
        shared=sum(now.get(name) == kind for name, kind in before.items()),
    )


def with_missing(rows: pa.Table, columns: Sequence[TableColumn], prefix: str) -> pa.Table:
    """`rows` with all `columns`, named `prefix` + name; those that `rows` lacks have no value in any row."""
    for column in columns:
        if prefix + column.name not in rows.schema.names:
            empty = pa.nulls(rows.num_rows, TYPES[column.kind])
            rows = rows.append_column(prefix + column.name, empty)
    return rows
