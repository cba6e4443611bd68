"""A column of numbers in which an export wrote a few texts: refused with the place of the first ones."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.data.sources.table import Table
from training.data.tables.damaged_columns import check_not_damaged
from training.errors import DataError
from training.records import ColumnKind, SourceFiles

CHAMPION: dict[str, ColumnKind] = {"age": "number", "city": "category", "paid": "boolean"}
ROWS = 40


def people(folder: Path, damaged: dict[int, str], column: str = "age") -> SourceFiles:
    """The typed copy of a CSV; `damaged` replaces values of a column, by the number of the row."""
    lines = ["age,city,paid,price"]
    for row in range(1, ROWS + 1):
        fields = {"age": f"{20 + row}.0", "city": "UB"[row % 2], "paid": ("true", "false")[row % 2]}
        fields[column] = damaged.get(row, fields[column])
        lines.append(",".join([*fields.values(), str(row)]))
    folder.mkdir(exist_ok=True)
    (folder / "people.csv").write_text("\n".join(lines))
    return Table(folder / "people.csv", "price").fetch(folder / "sources")


def test_a_value_that_became_text_names_its_place_and_the_remedies(tmp_path: Path) -> None:
    files = people(tmp_path, {row: f"{row}.0 y" for row in (7, 11, 12, 30, 31, 40)})
    with pytest.raises(DataError) as caught:
        check_not_damaged(files, CHAMPION, "the champion (m version 3)")
    said = str(caught.value)
    assert said.startswith(
        f"{tmp_path}/people.csv row 7: column 'age' has '7.0 y', {tmp_path}/people.csv row 11"
    )
    assert "'12.0 y': 6 of its 40 values are no number" in said
    assert "the champion (m version 3) learned a column of numbers, so the column is damaged" in said
    assert "Repair the export" in said
    assert "drop=['age']" in said
    assert 'types={"age": "category"}' in said


def test_a_column_of_booleans_and_parquet_files_are_checked_as_well(tmp_path: Path) -> None:
    files = people(tmp_path, dict.fromkeys(range(1, 10), "maybe"), "paid")
    with pytest.raises(
        DataError, match=r"row 1: column 'paid' has 'maybe'.*9 of its 40 values.*true or false"
    ):
        check_not_damaged(files, CHAMPION, "the champion")
    ages = [f"{row}" for row in range(30)] + ["n/k"] * 5
    pq.write_table(pa.table({"age": ages, "price": range(35)}), tmp_path / "people.parquet")
    files = Table(tmp_path / "people.parquet", "price").fetch(tmp_path / "sources")
    with pytest.raises(DataError, match=r"people\.parquet row 31: column 'age' has 'n/k'"):
        check_not_damaged(files, CHAMPION, "the champion")


@pytest.mark.parametrize("texts", [range(1, 21), range(1, 41)])
def test_a_column_that_is_text_in_half_of_its_rows_has_changed(tmp_path: Path, texts: range) -> None:
    check_not_damaged(people(tmp_path, dict.fromkeys(texts, "young")), CHAMPION, "the champion")


def test_declared_and_new_columns_and_those_of_text_are_not_damaged(tmp_path: Path) -> None:
    files = people(tmp_path, dict.fromkeys(range(1, 10), "young"))
    check_not_damaged(files, CHAMPION, "the champion", meant={"age"})
    check_not_damaged(files, CHAMPION | {"age": "category"}, "the champion")
    check_not_damaged(files, {"city": "category"}, "the champion")
    check_not_damaged(people(tmp_path / "sound", {}), CHAMPION, "the champion")
