"""Tables whose columns differ: the differences in words, and rows of one table in the columns of the other."""

import datetime

import numpy as np
import pyarrow as pa
from small_tables import described, values

from training.data.tables.encoding import encode
from training.data.tables.other_columns import ColumnDifferences, content_columns, in_columns_of
from training.records import TableColumn, TableSchema


def test_all_differences_are_one_line() -> None:
    old, new = {"a": "number", "b": "category", "c": "number"}, {"e": "date", "c": "category", "d": "number"}
    found = ColumnDifferences.between(old, new)  # type: ignore[arg-type]
    assert found.words() == "new columns: e, d; gone: a, b; changed kind: c (number -> text)"
    assert found


def test_the_order_of_columns_is_no_difference() -> None:
    found = ColumnDifferences.between({"a": "number", "b": "date"}, {"b": "date", "a": "number"})
    assert not found
    assert found.words() == ""


def test_many_names_are_counted() -> None:
    found = ColumnDifferences.between({}, {f"c{number}": "number" for number in range(20)})
    assert found.words() == "new columns: c0, c1, c2, c3, c4, c5, c6, c7 and 12 more"


def test_rows_of_another_table_have_the_kinds_of_the_schema() -> None:
    """A text that is a number becomes the number; a value of another kind, and a column that is gone, are missing."""
    schema = TableSchema(
        target="y",
        columns=(
            TableColumn(name="weight", kind="number"),
            TableColumn(name="zone", kind="category", categories=("1", "2")),
            TableColumn(name="shape", kind="category", categories=("box",)),
            TableColumn(name="sold", kind="date"),
        ),
    )
    rows = pa.table(
        {
            "feature.sold": ["1970-01-03", "soon", None],
            "feature.more": [1.0, 2.0, 3.0],
            "feature.weight": ["22.5", "22.0 y", None],
            "feature.zone": [2.0, 7.0, 1.0],
        }
    )
    made = in_columns_of(rows, schema)
    assert made["feature.sold"].to_pylist() == [datetime.datetime(1970, 1, 3), None, None]
    nan = np.nan
    wanted = np.array([[22.5, 1, nan, 2], [nan, nan, nan, nan], [nan, 0, nan, nan]], np.float32)
    assert np.array_equal(encode(made, schema, "feature."), wanted, equal_nan=True)


def test_rows_are_found_again_by_the_columns_that_both_tables_have_as_one_kind() -> None:
    version = described(values())
    table = version.table
    assert table is not None
    assert content_columns(table, version) == {}
    fewer = table.model_copy(update={"columns": table.columns[:2]})
    assert content_columns(fewer, version) == {"size": "number", "colour": "category"}
    assert content_columns(table, version.model_copy(update={"table": fewer})) == {
        "size": "number",
        "colour": "category",
    }
    text = table.columns[0].model_copy(update={"kind": "category"})
    other = table.model_copy(update={"columns": (text, *table.columns[1:])})
    assert content_columns(other, version) == {"colour": "category", "day": "date"}
