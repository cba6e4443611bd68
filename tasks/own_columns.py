"""The inputs of registered versions whose table has other columns than a dataset.

Such a version is scored on its own columns. One that the dataset lacks is missing in all rows, as it would be for a
service that got these rows.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from training.data.dataset import Columns
from training.data.manifest import read_parts
from training.data.preprocessing.applying import model_inputs
from training.data.tables.other_columns import in_columns_of, kinds_of
from training.data.tables.values import FEATURE
from training.data.text.unpacking import text_ids
from training.records import DatasetVersion, TableSchema

Inputs = npt.NDArray[Any]


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
