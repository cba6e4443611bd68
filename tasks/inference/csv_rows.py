"""Predictions as CSV: a row for each input, without nested columns; text is in quotes only where CSV needs them."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.types

from tasks.problems.classification.outputs import CLASSES_KEY


def csv_writer(path: Path, schema: pa.Schema) -> pa.csv.CSVWriter:
    """A writer of tables that :func:`flat` returned; a missing value is an empty cell, an empty text is `""`."""
    return pa.csv.CSVWriter(path, schema, write_options=pa.csv.WriteOptions(quoting_style="needed"))


def flat(rows: pa.Table) -> pa.Table:
    """The rows with a column `probabilities.CLASS` for each class in place of the column `probabilities`.

    Of a model without names of classes, the number of the value, from 0, stands for the name.
    """
    columns: dict[str, pa.ChunkedArray] = {}
    classes = json.loads((rows.schema.metadata or {}).get(CLASSES_KEY, "[]"))
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if not pa.types.is_fixed_size_list(field.type):
            columns[field.name] = column
            continue
        size, values = field.type.list_size, column.combine_chunks().flatten()
        for at in range(size):
            name = classes[at] if len(classes) == size else str(at)
            columns[f"{field.name}.{name}"] = values.take(pa.array(range(at, len(values), size), pa.int64()))
    return pa.table(columns)
