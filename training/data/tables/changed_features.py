"""The features that a recipe's function `transform_rows` computes from the columns of a table."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from training.data.preparation.row_function import RowFunction, changed_table
from training.data.tables.encoding import wrong_value
from training.data.tables.values import FEATURE, TYPES, kind_of, plain, typed
from training.errors import SettingError
from training.records import ColumnKind

_TRIED_ROWS = 1000


def find_columns(
    function: RowFunction, rows: pa.RecordBatch, given: Mapping[str, ColumnKind], first: str
) -> dict[str, ColumnKind]:
    """The columns that `function` returns for up to 1,000 raw rows, with their kinds.

    `given` are the columns of the source and their kinds; `first` names the first row in messages. A column of
    `given` keeps its kind, and a new column has the kind of its Arrow type; a new column without any value counts as
    numbers. Raises :class:`SettingError` when the function fails, returns no column, or a column of a type that
    tables don't support.
    """
    tried = pa.table({name: rows[f"{FEATURE}{name}"] for name in given}).slice(0, _TRIED_ROWS)
    made = changed_table(function, tried, first)
    kinds: dict[str, ColumnKind] = {}
    for column in made.schema:
        kind = given.get(column.name, "number" if pa.types.is_null(column.type) else kind_of(column.type))
        if kind is None:
            raise SettingError(
                f"{function.label}: returned column {column.name!r} of type {column.type}; return numbers, text, "
                "booleans or dates."
            )
        kinds[column.name] = kind
    if not kinds:
        raise SettingError(f"{function.label}: returned no columns, so there is nothing to learn from.")
    return kinds


def changed_features(
    function: RowFunction,
    rows: pa.Table,
    wanted: Mapping[str, ColumnKind],
    first: str,
    again: bool = False,
    errors: dict[int, str] | None = None,
) -> dict[str, pa.Array]:
    """The typed columns `wanted` that `function` computes from typed rows; `first` names the first row in messages.

    With `again`, the function is called a second time, to detect results that differ between calls. With `errors`, a
    value that is not of its column's kind becomes null, and `errors` gets the reason by the row's number. Raises
    :class:`SettingError` when the function fails, returns other columns than for the first rows of the dataset, or,
    without `errors`, a value that is not of its column's kind.
    """
    if not len(rows):
        return {name: pa.array([], TYPES[kind]) for name, kind in wanted.items()}
    made = changed_table(function, rows, first, again)
    if set(made.column_names) != set(wanted):
        raise SettingError(
            f"{function.label}, on the batch that begins at {first}: returned the columns "
            f"{_listed(made.column_names)}, and for "
            f"the first rows of the dataset {_listed(list(wanted))}. Return the same columns for each batch."
        )
    columns = {}
    for name, kind in wanted.items():
        values = plain(made[name])
        columns[name], wrong = typed(values, kind)
        for row in np.flatnonzero(wrong).tolist():
            reason = wrong_value(name, values[row].as_py(), kind)
            if errors is None:
                raise SettingError(f"{function.label}, {row} rows after {first}: {reason}")
            errors.setdefault(row, f"{function.label}: {reason}")
    return columns


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, sorted(names)))
