"""The matrix of a table: what stands for each value, and what is said of rows that do not fit the schema."""

import datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tasks.model_formats.raw_table import encoded
from training.data.tables.encoding import encode, encoded_values, typed_rows
from training.data.tables.values import as_text, typed
from training.errors import DataError
from training.records import ColumnKind, TableColumn, TableSchema

SCHEMA = TableSchema(
    target="y",
    columns=(
        TableColumn(name="size", kind="number"),
        TableColumn(name="city", kind="category", categories=("Bonn", "Köln")),
        TableColumn(name="new", kind="boolean"),
        TableColumn(name="day", kind="date"),
    ),
)
NAN = float("nan")


def table(**columns: Any) -> pa.Table:
    rows = {
        "size": ["1.5", None, "-2e3"],
        "city": ["Köln", "Ulm", None],
        "new": ["true", "False", None],
        "day": ["1970-01-02", "1969-12-31T12:00:00Z", None],
    }
    return pa.table(rows | columns)


def fitting(rows: Any, schema: TableSchema) -> pa.Table:
    """The typed rows, none of which may have an error."""
    result = typed_rows(rows, schema)
    assert not any(result.errors)
    return result.rows


def matrix(rows: pa.Table) -> list[list[float]]:
    numbers = encode(fitting(rows, SCHEMA), SCHEMA)
    assert numbers.dtype == np.float32
    assert numbers.shape == (len(rows), 4)
    return numbers.tolist()


def test_each_value_has_its_number_and_a_missing_or_unknown_value_is_nan() -> None:
    expected = [[1.5, 1, 1, 1], [NAN, NAN, 0, -0.5], [-2000, NAN, NAN, NAN]]
    assert np.array_equal(matrix(table()), expected, equal_nan=True)


def test_the_order_of_the_given_columns_and_further_columns_make_no_difference() -> None:
    rows = table(more=["a", "b", "c"])
    assert np.array_equal(
        matrix(rows.select(["day", "more", "new", "size", "city"])), matrix(rows), equal_nan=True
    )


def test_types_of_parquet_are_encoded_as_text_is() -> None:
    rows = table(
        size=pa.array([1.5, NAN, -2000], pa.float32()),
        city=pa.array(["Köln", "Ulm", None]).dictionary_encode(),
        new=pa.array([True, False, None]),
        day=pa.array(
            [datetime.datetime(1970, 1, 2), datetime.datetime(1969, 12, 31, 12), None],
            pa.timestamp("ns", "UTC"),
        ),
    )
    assert np.array_equal(matrix(rows), matrix(table()), equal_nan=True)


def test_integers_stand_for_categories_of_their_digits() -> None:
    schema = TableSchema(
        target="y", columns=(TableColumn(name="zip", kind="category", categories=("1", "10115")),)
    )
    for kind in (pa.int64(), pa.float64()):
        rows = pa.table({"zip": pa.array([10115, 1, None], kind)})
        assert np.array_equal(encode(fitting(rows, schema), schema), [[1], [0], [NAN]], equal_nan=True)


def test_no_rows_and_chunks() -> None:
    rows = table()
    assert encode(rows.slice(0, 0), SCHEMA).shape == (0, 4)
    twice = pa.concat_tables([rows, rows])
    assert np.array_equal(matrix(twice), matrix(rows) * 2, equal_nan=True)
    (batch,) = rows.to_batches()
    assert np.array_equal(encode(fitting(batch, SCHEMA), SCHEMA), matrix(rows), equal_nan=True)


def test_prefixed_columns_of_part_files() -> None:
    rows = fitting(table(), SCHEMA)
    prefixed = rows.rename_columns([f"feature.{name}" for name in rows.column_names])
    assert np.array_equal(encode(prefixed, SCHEMA, "feature."), matrix(table()), equal_nan=True)


def test_missing_columns_are_named_with_the_nearest_name() -> None:
    rows = table().rename_columns(["Size", "city", "new", "date"])
    with pytest.raises(DataError, match=r"new\.csv: no columns 'size', 'day', .*did you mean 'Size'\?"):
        typed_rows(rows, SCHEMA, "new.csv")
    with pytest.raises(DataError, match="no column 'day'"):
        encode(table().drop_columns(["day"]), SCHEMA)


def test_each_row_with_a_wrong_value_has_its_error() -> None:
    result = typed_rows(table(size=["1", "2", "many"], new=["true", "maybe", "x"]), SCHEMA)
    assert [bool(error) for error in result.errors] == [False, True, True]
    assert "column 'new' has 'maybe', not true or false" in result.errors[1]
    assert "'size' has 'many'" in result.errors[2]
    assert result.rows["size"].to_pylist() == [1, 2, None]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("number", "+1.", 1.0),
        ("number", ".5e-1", 0.05),
        ("number", "1_000", None),
        ("number", "0x10", None),
        ("number", "inf", None),
        ("number", "3.5e38", None),
        ("boolean", "Yes", True),
        ("boolean", "0", False),
        ("boolean", "2", None),
        ("date", "2024-02-29", datetime.datetime(2024, 2, 29)),
        ("date", "2023-02-29", None),
        ("date", "2024-1-1", None),
        ("date", "2024-01-01 01:02:03.5", datetime.datetime(2024, 1, 1, 1, 2, 3, 500000)),
        ("date", "2024-01-01T00:30+01:00", datetime.datetime(2023, 12, 31, 23, 30)),
        ("date", "2024-01-01T25:00", None),
        ("category", " a ", "a"),
    ],
)
def test_text_is_converted_or_wrong(kind: ColumnKind, text: str, value: Any) -> None:
    result = typed(pa.array([text, None, ""]), kind)
    assert result.values.to_pylist() == [value, None, None]
    assert result.wrong.tolist() == [value is None, False, False]


def test_names_of_categories_and_classes() -> None:
    assert as_text(pa.array([3.0, -0.5, NAN, None, 1e16])).to_pylist() == [
        "3",
        "-0.5",
        None,
        None,
        "10000000000000000",
    ]
    assert as_text(pa.array([True, False])).to_pylist() == ["true", "false"]


@pytest.mark.parametrize("year", [1, 1600, 1970, 2300, 9999])
def test_a_date_of_any_year_is_its_days_since_1970(year: int) -> None:
    moment = datetime.datetime(year, 12, 31, 18, tzinfo=datetime.UTC)
    days = (moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) / datetime.timedelta(days=1)
    values, wrong = typed(pa.array([moment.isoformat(), None]), "date")
    assert not wrong.any()
    assert encoded_values(values, "date").tolist()[0] == days
    alone = TableSchema(target="y", columns=(TableColumn(name="day", kind="date"),))
    (by_mlflow,) = encoded(pd.DataFrame({"day": [moment]}), [{"name": "day", "kind": "date"}])[0]
    assert encode(pa.table({"day": values}), alone)[0, 0] == by_mlflow


def test_numbers_of_any_type_are_booleans_and_categories() -> None:
    for kind in (pa.decimal128(10, 2), pa.float16(), pa.float32(), pa.int8()):
        numbers = pa.array([0, 1, None], pa.int8()).cast(kind)
        assert typed(numbers, "boolean").values.to_pylist() == [False, True, None]
    assert as_text(pa.array(np.array([1, 2.5], np.float16))).to_pylist() == ["1", "2.5"]
