"""Rows of a table keep their identity by their key: split, exclusion and differences go by it."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from small_runs import prepared

from training.data.dataset import open_columns
from training.data.differences import differences
from training.data.row_digests import known_rows, part_tables, row_digests, rows_among
from training.data.sources.table import Table
from training.errors import DataError, SettingError
from training.records import DatasetVersion, Split
from training.storage.paths import Home

ROWS = 200


def customers(folder: Path, rows: int = ROWS, **changes: Any) -> Path:
    """A CSV of customers; `changes` replace or add columns."""
    columns: dict[str, Any] = {
        "id": range(1000, 1000 + rows),
        "shop": [row % 10 for row in range(rows)],
        "age": [20 + 0.25 * row for row in range(rows)],
        "city": [("Bonn", "Ulm", "Jena")[row % 3] for row in range(rows)],
        "left": [("no", "yes")[row // 2 % 2] for row in range(rows)],
    } | changes
    folder.mkdir(parents=True, exist_ok=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    (folder / "customers.csv").write_text("\n".join(lines) + "\n")
    return folder / "customers.csv"


def version_of(file: Path, key: Any = "id", **options: Any) -> DatasetVersion:
    return prepared(Home(file.parent / "home"), Table(file, target="left", key=key, **options), "customers")


def rows_by_split(version: DatasetVersion, split: Split) -> set[str]:
    """The rows of a split by what `where` says after the file: row and key."""
    return {
        where.partition(" row ")[2]
        for table in part_tables(version, split, ["where"])
        for where in table["where"].to_pylist()
    }


def shifted(folder: Path, rows: int = ROWS) -> Path:
    return customers(folder, rows, age=[20.01 + 0.25 * row for row in range(rows)])


def test_a_rewritten_column_leaves_each_row_in_its_split_and_is_told_as_changed_rows(tmp_path: Path) -> None:
    old, new = version_of(customers(tmp_path / "old")), version_of(shifted(tmp_path / "new"))
    for split in ("train", "test"):
        assert rows_by_split(old, split) == rows_by_split(new, split)
    found = differences(old, new)
    assert found.words() == f"{ROWS} rows changed, 0 new, 0 removed"
    assert not found.replaced
    assert not rows_among(new, "test", known_rows(old, "train")).any()
    assert rows_among(new, "train", known_rows(old, "train")).all()


def test_without_a_key_the_rewritten_column_redraws_the_split(tmp_path: Path) -> None:
    old, new = version_of(customers(tmp_path / "old"), ()), version_of(shifted(tmp_path / "new"), ())
    assert rows_by_split(old, "test") != rows_by_split(new, "test")
    assert differences(old, new).replaced


def test_appended_rows_leave_the_others_in_their_splits(tmp_path: Path) -> None:
    old, new = version_of(customers(tmp_path / "old")), version_of(shifted(tmp_path / "new", ROWS + 50))
    for split in ("train", "test"):
        assert rows_by_split(old, split) <= rows_by_split(new, split)
    assert differences(old, new).words() == f"{ROWS} rows changed, 50 new, 0 removed"


def test_a_key_is_no_feature_and_stands_beside_the_row(tmp_path: Path) -> None:
    version = version_of(customers(tmp_path))
    assert version.key == ("id",)
    assert version.table is not None
    assert [column.name for column in version.table.columns] == ["shop", "age", "city"]
    assert "1, id 1000" in rows_by_split(version, "train") | rows_by_split(version, "test")


def test_equal_rows_with_two_keys_are_two_rows(tmp_path: Path) -> None:
    file = customers(tmp_path, shop=[1] * ROWS, age=[30] * ROWS, city=["Bonn"] * ROWS)
    version = version_of(file)
    assert len(set(row_digests(version, "train").tolist())) == version.rows("train")
    assert version.rows("test") > ROWS / 10


def test_a_csv_and_parquet_with_whole_floats_have_the_same_keys(tmp_path: Path) -> None:
    file = customers(tmp_path / "csv")
    plain, table = version_of(file), csv.read_csv(file)
    for number, kind in enumerate((pa.int64(), pa.float64(), pa.string())):
        stored = tmp_path / str(number) / "customers.parquet"
        stored.parent.mkdir()
        place = table.schema.get_field_index("id")
        pq.write_table(table.set_column(place, "id", table["id"].cast(kind)), stored)
        assert np.array_equal(known_keys(version_of(stored)), known_keys(plain))


def known_keys(version: DatasetVersion) -> Any:
    return np.sort(np.concatenate([row_digests(version, "train"), row_digests(version, "test")]))


def test_columns_of_a_key_are_not_joined_to_the_same_text(tmp_path: Path) -> None:
    first = ["a, b" if row % 2 else "a" for row in range(ROWS)]
    keys: dict[str, Any] = {
        "one": [f'"{text}"' for text in first],
        "two": [f"{row // 2}" for row in range(ROWS)],
    }
    version = version_of(customers(tmp_path, **keys), ["one", "two"])
    assert len(set(known_keys(version).tolist())) == ROWS
    assert version.key == ("one", "two")


def test_with_group_and_key_the_group_divides_and_the_key_identifies(tmp_path: Path) -> None:
    old = version_of(customers(tmp_path / "old"), group="shop")
    new = version_of(customers(tmp_path / "new", age=[7 + row / 4 for row in range(ROWS)]), group="shop")
    assert rows_by_split(old, "test") == rows_by_split(new, "test")
    assert len(set(known_keys(old).tolist())) == 10
    assert differences(old, new).words() == f"{ROWS} rows changed, 0 new, 0 removed"
    # The shops were divided up anew: rows are found by their keys.
    other = version_of(
        customers(tmp_path / "other", shop=[100 + row % 20 for row in range(ROWS)]), group="shop"
    )
    known = known_rows(old, "train")
    assert rows_among(other, "train", known).sum() + rows_among(other, "test", known).sum() == old.rows(
        "train"
    )


def test_time_divides_and_the_key_identifies(tmp_path: Path) -> None:
    days = [f"2024-01-{1 + row // 10:02}" for row in range(ROWS)]
    version = version_of(customers(tmp_path, day=days), ["shop", "day"], time="day")
    assert version.rows("test") == ROWS // 5
    marked = open_columns(version, "train").digests
    assert len(set(marked.tolist())) == version.rows("train")


def test_a_key_of_two_rows_is_refused_with_both_rows(tmp_path: Path) -> None:
    ids = [*range(1000, 1000 + ROWS)]
    ids[150] = ids[20]
    file = customers(tmp_path, id=ids)
    with pytest.raises(DataError) as refused:
        version_of(file)
    text = str(refused.value)
    assert text.startswith(f"{file} row 151: its key, id 1020, is that of {file} row 21, too.")
    assert "key=[...]" in text
    assert "group=" in text


def test_a_key_is_refused_in_two_files_and_splits(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    train = customers(folder / "train")
    test = customers(folder / "test", 30, id=[*range(5000, 5029), 1199])
    with pytest.raises(DataError) as refused:
        version_of(folder)
    assert {str(train), str(test)} <= set(
        str(refused.value).replace(" row ", "|").replace(" of ", "|").split("|")
    )
    assert "id 1199" in str(refused.value)


def test_a_missing_key_is_refused_with_its_row(tmp_path: Path) -> None:
    file = customers(tmp_path, id=[*range(ROWS - 1), ""])
    with pytest.raises(
        DataError, match=f"customers.csv row {ROWS}: column 'id' is empty, and key= needs a value"
    ):
        version_of(file)


def test_a_key_column_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no column 'ident', which Table\(key=...\) names"):
        version_of(customers(tmp_path), "ident")


@pytest.mark.parametrize(
    ("key", "options", "named"),
    [
        ("left", {}, "'left' is the target"),
        ("id", {"split": "id"}, "'id' is the split"),
        ("id", {"drop": ["id"]}, "take it out of drop"),
        (["id", "id"], {}, "distinct for each row"),
        ("city", {"group": "city"}, "share a group"),
    ],
)
def test_a_key_that_contradicts_another_option_is_refused(
    key: Any, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(SettingError, match=named):
        Table("rows.csv", target="left", key=key, **options)
