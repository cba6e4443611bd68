"""Tables whose columns differ: which ones, in words, and the rows of one table in the columns of the other."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self

import pyarrow as pa

from training.data.tables.values import FEATURE, TYPES, typed
from training.records import ColumnKind, DatasetVersion, TableSchema

_SHOWN = 8
_WORDS: dict[ColumnKind, str] = {"category": "text", "boolean": "true or false"}


class ColumnDifferences(NamedTuple):
    """Columns that only the newer, or only the older of two tables has, and those of another kind, as (old, new)."""

    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    changed: Mapping[str, tuple[str, str]] = {}

    @classmethod
    def between(cls, old: Mapping[str, ColumnKind], new: Mapping[str, ColumnKind]) -> Self:
        """The differences of two tables, given as the kinds of their columns; their order does not count."""
        return cls(
            tuple(name for name in new if name not in old),
            tuple(name for name in old if name not in new),
            {
                name: (word(kind), word(new[name]))
                for name, kind in old.items()
                if new.get(name, kind) != kind
            },
        )

    def __bool__(self) -> bool:
        return any(self)

    def words(self) -> str:
        """All differences: `new columns: a, b; gone: c; changed kind: d (number -> text)`."""
        kinds = [f"{name} ({old} -> {new})" for name, (old, new) in self.changed.items()]
        parts = (
            ("new column" if len(self.new) == 1 else "new columns", self.new),
            ("gone", self.gone),
            ("changed kind", kinds),
        )
        return "; ".join(f"{what}: {_listed(names)}" for what, names in parts if names)

    def remedies(self) -> str:
        """What an owner can do about each of the differences."""
        leave_out = f"drop={[*self.new, *self.changed]} in the recipe's Table leaves them out"
        parts = [leave_out] if self.new or self.changed else []
        if self.gone or self.changed:
            parts.append("repair the export if a column is gone or changed by mistake")
        return "; ".join(parts)


def word(kind: ColumnKind) -> str:
    """A kind of column, for people."""
    return _WORDS.get(kind, kind)


def kinds_of(table: TableSchema) -> dict[str, ColumnKind]:
    """The kinds of a table's columns by name, before preprocessing."""
    return {column.name: column.kind for column in table.raw.columns}


def own_columns_in_words(model: str, table: TableSchema | None, version: DatasetVersion) -> str:
    """How `model`, on `table`, is scored if the dataset has other columns; empty if it has the same."""
    differences = differences_of(table, version)
    if not differences:
        return ""
    missing = [f"without values in {_listed(differences.gone)}"] if differences.gone else []
    if differences.changed:
        missing.append(f"with values of {_listed(differences.changed)} only where they are of its own kind")
    scored = f"{model} is scored on its own columns ({differences.words()})"
    return f"{scored}, {' and '.join(missing)}" if missing else scored


def differences_of(table: TableSchema | None, version: DatasetVersion) -> ColumnDifferences:
    """How the columns of a dataset differ from those of a model; not at all for images and texts."""
    if table is None or version.table is None or table.text is not None:
        return ColumnDifferences()
    return ColumnDifferences.between(kinds_of(table), kinds_of(version.table))


def in_columns_of(rows: pa.Table, schema: TableSchema) -> pa.Table:
    """Rows of part files in the raw columns of `schema`, with the types of its kinds.

    A column that `rows` lacks is missing in all rows, and so is a value that is not of the column's kind.
    """
    columns = {}
    for column in schema.raw.columns:
        name = f"{FEATURE}{column.name}"
        if name in rows.column_names:
            columns[name] = typed(rows[name], column.kind).values
        else:
            columns[name] = pa.nulls(len(rows), TYPES[column.kind])
    return pa.table(columns)


def content_columns(table: TableSchema | None, version: DatasetVersion) -> dict[str, ColumnKind]:
    """The columns that both tables have, if their columns differ: rows are found again by their content in these.

    Empty if rows are found by all of their content. `table` describes the older table. Columns that a function of the
    recipe computes have no digests of their own.
    """
    if table is None or version.table is None or table.text or version.transform or table.given:
        return {}
    old, new = kinds_of(table), kinds_of(version.table)
    return {} if old == new else {name: kind for name, kind in old.items() if new.get(name) == kind}


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more
