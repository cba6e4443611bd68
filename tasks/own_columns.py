"""Registered versions whose table has other columns than a dataset: their inputs, and how they are scored, in words.

Such a version is scored on its own columns. One that the dataset lacks is missing in all rows, as it would be for a
service that got these rows.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from training.data.dataset import Columns
from training.data.manifest import read_parts
from training.data.preprocessing.applying import model_inputs
from training.data.tables.other_columns import ColumnDifferences, in_columns_of, kinds_of
from training.data.tables.values import FEATURE
from training.data.text.unpacking import text_ids
from training.records import DatasetVersion, TableSchema

Inputs = npt.NDArray[Any]
_REMEDY = "if that is a mistake, repair the export"


def own_inputs(
    table: TableSchema | None,
    tokenizer: str,
    version: DatasetVersion,
    rows: Columns,
    compared: npt.NDArray[np.bool_],
) -> Inputs:
    """The inputs of the test rows in `compared` as a model on `table` takes them; `rows` are these rows of the dataset.

    Columns, their order, kinds and categories are those of the model's own dataset. A category that the model does not
    have counts as missing, as in :mod:`training.data.tables.encoding`, and so does a value of another kind. Texts
    become token ids by the model's own `tokenizer`.
    """
    if table is None or version.table is None or same_inputs(table, version.table):
        return rows.inputs
    if table.text is not None:
        return text_ids(version, "test", tokenizer)[compared]
    there = kinds_of(version.table)
    columns = [f"{FEATURE}{name}" for name in kinds_of(table) if name in there]
    parts = [
        model_inputs(in_columns_of(part, table), table, FEATURE)
        for part in read_parts(version, "test", columns)
    ]
    return np.concatenate(parts)[compared]


def same_inputs(schema: TableSchema, other: TableSchema) -> bool:
    """Whether both schemas encode each row in the same way."""

    def meaning(table: TableSchema) -> Any:
        columns = [(column.name, column.kind, column.categories) for column in table.raw.columns]
        tokens = table.text and (table.text.tokenizer, table.text.length)
        return columns, tokens, table.preprocessing and table.preprocessing.made

    return bool(meaning(schema) == meaning(other))


def scored_on_own_columns(names: dict[str, TableSchema | None], version: DatasetVersion) -> str:
    """How registered versions, by name, are scored whose columns differ from the dataset's; empty if none does."""
    said = []
    for name, table in names.items():
        if table is None or version.table is None or table.text is not None:
            continue
        differences = ColumnDifferences.between(kinds_of(table), kinds_of(version.table))
        if differences:
            said.append(f"{name} is scored on its own columns ({differences.words()}){_missing(differences)}")
    return "; ".join(said)


def _missing(differences: ColumnDifferences) -> str:
    parts = []
    if differences.gone:
        parts.append(f"without values in {', '.join(differences.gone)}")
    if differences.changed:
        parts.append(f"with values of {', '.join(differences.changed)} only where they are of its own kind")
    return f", {' and '.join(parts)}: {_REMEDY}" if parts else ""
