"""Rows of a table for prediction: found by column name, converted by the model's schema, refused by row."""

import logging
import os
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tasks.inference.unlabelled_tables import Tables
from training.errors import DataError
from training.records import TableColumn, TableSchema

SCHEMA = TableSchema(
    target="price",
    columns=(
        TableColumn(name="carat", kind="number"),
        TableColumn(name="cut", kind="category", categories=("Fair", "Good", "Ideal"), counts=(1, 2, 3)),
        TableColumn(name="sold", kind="boolean"),
        TableColumn(name="day", kind="date"),
    ),
)
HEADER = "carat,cut,sold,day"
NAN = float("nan")


def read(path: Path, schema: TableSchema = SCHEMA) -> dict[str, np.ndarray]:
    reader = Tables(schema)
    batches = [batch for chunk in reader.find(path) for batch in reader.read(chunk)]
    assert all(len(batch["inputs"]) <= reader.rows_at_once for batch in batches)
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def written(file: Path, *lines: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")
    return file


def test_columns_are_found_by_name_and_encoded_by_the_schema(tmp_path: Path) -> None:
    file = written(
        tmp_path / "new.csv",
        "day,price,cut,note,carat,sold",
        '1970-01-02,326,Ideal,"one, two\nlines",0.5,true',
        "",
        "2000-01-01T12:00:00,,Fair,x, 1e3 ,FALSE",
        "NA,,,,,",
    )
    rows = read(file)
    wanted = np.array([[0.5, 2, 1, 1], [1000, 0, 0, 10957.5], [NAN] * 4], np.float32)
    assert np.array_equal(rows["inputs"], wanted, equal_nan=True)
    assert rows["inputs"].dtype == np.float32
    assert rows["where"].tolist() == ["new.csv:1", "new.csv:2", "new.csv:3"]
    assert rows["error"].tolist() == rows["unknown"].tolist() == ["", "", ""]


def test_a_type_does_not_depend_on_the_values_of_a_block(tmp_path: Path) -> None:
    """The first megabytes of a column look like numbers, and the column is a category."""
    schema = TableSchema(
        target="y",
        columns=(TableColumn(name="zip", kind="category", categories=("01234", "x"), counts=(1, 1)),),
    )
    rows = 1 << 20
    file = tmp_path / "zips.csv"
    file.write_text("zip,pad\n" + f"01234,{'p' * 20}\n" * rows + "x,p\n")
    assert file.stat().st_size > 16 << 20
    arrays = read(file, schema)
    assert arrays["inputs"][:, 0].tolist() == [0.0] * rows + [1.0]
    assert arrays["where"][-1] == f"zips.csv:{rows + 1}"


def test_csv_and_parquet_give_the_same_rows(tmp_path: Path) -> None:
    table = pa.table(
        {
            "carat": pa.array([0.25, None, 3], pa.float32()),
            "cut": pa.array(["Good", "Fair", None]).dictionary_encode(),
            "sold": [True, None, False],
            "day": [date(2024, 2, 29), None, date(1969, 12, 31)],
        }
    )
    (tmp_path / "texts").mkdir()
    (tmp_path / "binaries" / "inner").mkdir(parents=True)
    pyarrow.csv.write_csv(table, tmp_path / "texts" / "b.csv")
    pq.write_table(table, tmp_path / "binaries" / "b.parquet", row_group_size=2)
    pq.write_table(table.slice(1), tmp_path / "binaries" / "inner" / "a.pq")
    texts, binaries = read(tmp_path / "texts"), read(tmp_path / "binaries")
    assert np.array_equal(texts["inputs"], binaries["inputs"][:3], equal_nan=True)
    assert np.array_equal(texts["inputs"][1:], binaries["inputs"][3:], equal_nan=True)
    assert binaries["where"].tolist() == [
        "b.parquet:1",
        "b.parquet:2",
        "b.parquet:3",
        "inner/a.pq:1",
        "inner/a.pq:2",
    ]


def test_a_value_of_another_type_is_the_error_of_its_row(tmp_path: Path) -> None:
    file = written(
        tmp_path / "new.csv",
        HEADER,
        "1,Good,true,2024-01-01",
        "large,Good,true,2024-01-01",
        "1,Good,perhaps,2024-01-01",
        "1,Good,true,2023-02-30",
        "inf,Good,true,tomorrow",
    )
    rows = read(file)
    assert rows["error"].tolist() == [
        "",
        f"{file} row 2: column 'carat' has 'large', not a finite number of 32 bits.",
        f"{file} row 3: column 'sold' has 'perhaps', not true or false.",
        f"{file} row 4: column 'day' has '2023-02-30', not a date as 2024-12-31 or 2024-12-31T23:59:59.",
        f"{file} row 5: column 'carat' has 'inf', not a finite number of 32 bits.",
    ]


def test_new_categories_are_named_by_row(tmp_path: Path) -> None:
    file = written(tmp_path / "new.csv", HEADER, "1,Good,,", '1,"Very ""Good""",,', "1,NA,,", "1,ideal,,")
    rows = read(file)
    assert rows["unknown"].tolist() == ["", '{"cut": "Very \\"Good\\""}', "", '{"cut": "ideal"}']
    assert np.array_equal(rows["inputs"][:, 1], [1, NAN, NAN, NAN], equal_nan=True)


def test_ignored_columns_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a.csv", "b.csv"):
        written(tmp_path / name, f"id,{HEADER},price,note", "7,1,Good,,,3,x")
    with caplog.at_level(logging.INFO, "evergreen.predict"):
        read(tmp_path)
    (record,) = caplog.records
    assert record.getMessage() == "columns that the model does not use are ignored: 'id', 'note'"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        pytest.param(["carat,Cut,sold,day", "1,2,3,4"], r"new\.csv: no column 'cut'.*'Cut'", id="other name"),
        pytest.param([HEADER + ",cut", "1,2,3,4,5"], r"new\.csv: two columns are named 'cut'", id="twice"),
        pytest.param([HEADER, "1,Good,,", "1,Good"], r"new\.csv row 2: has 2 values.* 4 names", id="too few"),
        pytest.param([HEADER, "1,Good,,,,"], r"new\.csv row 1: has 6 values.* 4 names", id="too many"),
        pytest.param([HEADER], r"new\.csv: has no rows", id="no rows"),
        pytest.param([""], r"new\.csv: is empty", id="empty"),
        pytest.param([HEADER, '1,"Good,,'], r"new\.csv row 1", id="open quote"),
    ],
)
def test_a_file_that_is_no_table_of_the_model(tmp_path: Path, lines: list[str], message: str) -> None:
    file = written(tmp_path / "new.csv", *lines)
    with pytest.raises(DataError, match=message):
        Tables(SCHEMA).find(file)


def test_a_column_missing_in_parquet(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"carats": [1.0], "sold": [True], "day": [None], "cut": ["Good"]}), tmp_path / "a.parquet"
    )
    with pytest.raises(DataError, match=r"a\.parquet: no column 'carat'.*did you mean 'carats'\?"):
        Tables(SCHEMA).find(tmp_path / "a.parquet")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"a\.parquet: not a whole Parquet file"):
        Tables(SCHEMA).find(tmp_path / "a.parquet")


def test_text_that_is_not_utf8_is_refused_even_after_the_first_block(tmp_path: Path) -> None:
    file = tmp_path / "new.csv"
    file.write_bytes(f"{HEADER}\n".encode() + b"1,Good,,\n" * 5 + b"1,Tr\xe8s bon,,\n")
    with pytest.raises(DataError, match=r"new\.csv line 7: is not UTF-8"):
        read(file)


def test_places_without_a_table(tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(b"x")
    with pytest.raises(DataError, match=r"nothing to score.*\.csv, \.parquet"):
        Tables(SCHEMA).find(tmp_path)
    written(tmp_path / "a.csv", HEADER, "1,,,")
    pq.write_table(pa.table({"carat": [1.0]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"holds CSV and Parquet \(a\.csv, b\.parquet\)"):
        Tables(SCHEMA).find(tmp_path)
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(DataError, match=r"neither a plain file nor a folder"):
        Tables(SCHEMA).find(tmp_path / "pipe.csv")
