"""Compute the input matrix of a model on a table: encode the columns, then apply the fitted preprocessing.

With preprocessing, the numbers are 64-bit until all operations are done, as in Ray Data, and are then rounded to 32
bits. A number beyond the range of 32-bit floats becomes the largest or least of that range, because XGBoost refuses
infinite numbers. `tasks/model_formats/raw_table.py` computes the same bits in models that plain MLflow loads.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.tables.encoding import Rows, encode, encoded_values
from training.data.tables.values import LARGEST, plain
from training.records import TableColumn, TableSchema
from training.table_records import Equal, Fill, Operation, Position, Scale

Numbers = npt.NDArray[np.float64]
_UNKNOWN = -1.0  # code of a category that the column does not have


def model_inputs(rows: Rows, schema: TableSchema, prefix: str = "") -> npt.NDArray[np.float32]:
    """The input matrix of a model on the table: float32 (rows, columns of the schema).

    `rows` has the raw columns with the types of part files, named `prefix` + name. Raises
    :class:`training.errors.DataError` for a column that is missing.
    """
    if schema.preprocessing is None:
        return encode(rows, schema, prefix)
    encode(rows.slice(0, 0), schema.raw, prefix)  # raises DataError for missing columns
    columns = {column.name: column for column in schema.raw.columns}
    numbers: dict[str, Numbers] = {}
    matrix = np.empty((rows.num_rows, len(schema.columns)), np.float32)
    for position, (column, made) in enumerate(zip(schema.columns, schema.preprocessing.made, strict=True)):
        if made.source not in numbers:
            numbers[made.source] = encoded_column(rows[prefix + made.source], columns[made.source])
        values = applied(numbers[made.source], made.operations)
        if column.kind == "category":
            values = np.where(values < 0, np.nan, values)
        matrix[:, position] = np.clip(values, -LARGEST, LARGEST)
    return matrix


def encoded_column(values: "pa.Array | pa.ChunkedArray", column: TableColumn) -> Numbers:
    """The 64-bit numbers from which operations start: NaN for a missing value, -1 for an unknown category."""
    array = plain(values)
    numbers = encoded_values(array, column.kind, column)
    if column.kind == "category":
        numbers = np.where(np.isnan(numbers) & np.asarray(array.is_valid()), _UNKNOWN, numbers)
    return numbers


def applied(numbers: Numbers, operations: Sequence[Operation]) -> Numbers:
    """The numbers after all operations, applied in order."""
    for operation in operations:
        numbers = _applied(numbers, operation)
    return numbers


def _applied(numbers: Numbers, operation: Operation) -> Numbers:
    match operation:
        case Fill(value=value):
            return np.where(np.isnan(numbers), value, numbers)
        case Scale(divisor=0.0):
            return np.zeros_like(numbers)
        case Scale(shift=shift, divisor=divisor):
            return (numbers - shift) / divisor
        case Position(values=values):
            return _positions(numbers, np.array(values))
        case Equal(value=value):
            return np.where(numbers == value, 1.0, 0.0)


def _positions(numbers: Numbers, values: Numbers) -> Numbers:
    """The position of each number in `values` (distinct, in any order); NaN for a number that is not in `values`."""
    order = np.argsort(values)
    near = np.minimum(np.searchsorted(values[order], numbers), len(values) - 1)
    return np.where(values[order][near] == numbers, order[near], np.nan)
