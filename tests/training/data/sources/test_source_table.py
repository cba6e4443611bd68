"""The source of a table: what its columns are recognised as, which rows it has, and which tables it refuses."""

import datetime
import os
import re
import tarfile
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.data.sources.locate import open_path, reader
from training.data.sources.packed import Packed
from training.data.sources.parquet import ParquetImages
from training.data.sources.table import Table
from training.data.tables import typed_copy
from training.errors import DataError, SettingError
from training.recipe import load
from training.records import SourceFiles

HOUSES = """id,area,rooms,city,sold,garden,price
a1,71.5,3,Köln,2024-01-31,true,310000
b2,,2,"Bonn, West",2024-02-01,false,150000
c3,120,NA,Köln,2023-12-24,,480000.5
d4, 88 ,4, Bonn ,2024-02-01,TRUE,
"""


def written(folder: Path, text: str, name: str = "houses.csv") -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def houses(folder: Path, **options: Any) -> Table:
    return Table(written(folder, HOUSES), **{"target": "price", "drop": ["id"]} | options)


def rows_of(source: Any, files: SourceFiles, split: str = "") -> list[dict[str, Any]]:
    numbers = range(source.count(files, split))
    return [row for batch in source.read(files, split, numbers) for row in batch.to_pylist()]


def fetched(source: Table, folder: Path) -> dict[str, list[Any]]:
    """All rows by split and column; rows have no `where`, and the prefix of the features is removed."""
    files = source.fetch(folder)
    rows = [row for split in source.splits(files) for row in rows_of(source, files, split)]
    names = [name for name in rows[0] if name != "where"]
    return {name.removeprefix("feature."): [row[name] for row in rows] for name in names}


def refused(table: Callable[[], Table], folder: Path, *texts: str) -> None:
    with pytest.raises(DataError) as caught:
        table().fetch(folder / "home")
    for text in texts:
        assert text in str(caught.value)


def test_every_kind_of_column_is_recognised_from_all_rows(tmp_path: Path) -> None:
    day = datetime.datetime
    assert fetched(houses(tmp_path), tmp_path / "home") == {
        "area": [71.5, None, 120.0, 88.0],
        "rooms": [3.0, 2.0, None, 4.0],
        "city": ["Köln", "Bonn, West", "Köln", "Bonn"],
        "sold": [day(2024, 1, 31), day(2024, 2, 1), day(2023, 12, 24), day(2024, 2, 1)],
        "garden": [True, False, None, True],
        "label": [310000.0, 150000.0, 480000.5, None],
        "split": [""] * 4,
    }


def test_rows_are_numbered_as_a_person_counts_them(tmp_path: Path) -> None:
    source = houses(tmp_path)
    files = source.fetch(tmp_path / "home")
    assert [row["where"] for row in rows_of(source, files)] == [
        f"{tmp_path}/houses.csv row {n}" for n in (1, 2, 3, 4)
    ]
    assert (files.kind, files.origin, files.files) == ("table", f"{tmp_path}/houses.csv", 1)


def test_declared_types_are_used_in_place_of_recognised_types(tmp_path: Path) -> None:
    text = "zip,flag,n,y\n01067,1,3,1\n10115,0,4,2\n10115,,5,3\n"
    types = {"zip": "category", "flag": "boolean"}
    columns = fetched(Table(written(tmp_path, text), target="y", types=types), tmp_path / "home")
    assert (columns["zip"], columns["flag"]) == (["01067", "10115", "10115"], [True, False, None])
    assert fetched(Table(tmp_path / "houses.csv", target="y"), tmp_path / "home")["zip"] == [
        1067,
        10115,
        10115,
    ]


def test_quotes_commas_line_breaks_and_a_byte_order_mark(tmp_path: Path) -> None:
    text = '\ufeff"na,me", city ,y\n"line\none","say ""hi""",1\n"b",x,2\n'
    columns = fetched(Table(written(tmp_path, text), target="y"), tmp_path / "home")
    assert columns["na,me"] == ["line\none", "b"]
    assert columns["city"] == ['say "hi"', "x"]


def test_parquet_gives_the_same_rows_as_csv(tmp_path: Path) -> None:
    """Integers, floats, dictionaries, dates and decimals of Parquet have the values that CSV has as text."""
    table = pa.table(
        {
            "area": pa.array([71.5, float("nan"), 120, 88]),
            "rooms": pa.array([3, 2, None, 4], pa.int8()),
            "city": pa.array(["Köln", "Bonn, West", "Köln", "Bonn"]).dictionary_encode(),
            "sold": pa.array(
                [datetime.date(2024, 1, 31), datetime.date(2024, 2, 1), datetime.date(2023, 12, 24)] * 2
            )[:4],
            "garden": pa.array([True, False, None, True]),
            "price": pa.array([310000, 150000, 480000.5, None]),
        }
    )
    pq.write_table(table, tmp_path / "houses.parquet")
    columns = fetched(Table(tmp_path / "houses.parquet", target="price"), tmp_path / "home")
    expected = fetched(houses(tmp_path), tmp_path / "home")
    columns["sold"][3] = expected["sold"][3]  # the list above repeats the first date
    assert columns == expected


def test_decimals_of_parquet_are_the_numbers_that_csv_has_as_text(tmp_path: Path) -> None:
    """Arrow's own conversion gives 2.3000000000000003 for 2.3, which an encoder takes for another value."""
    texts = ["2.3", "-0.7", "0.1", None, "9999999.9"]
    numbers = [float(text) if text else None for text in texts]
    for kind in (pa.decimal32(8, 1), pa.decimal64(18, 3), pa.decimal128(38, 20), pa.decimal256(76, 40)):
        values = pa.array([None if text is None else Decimal(text) for text in texts], kind)
        pq.write_table(
            pa.table({"a": values, "y": values.take([0, 1, 2, 0, 4])}), tmp_path / "decimals.parquet"
        )
        columns = fetched(Table(tmp_path / "decimals.parquet", target="y"), tmp_path / "home")
        assert columns["a"] == numbers
        assert columns["label"] == [2.3, -0.7, 0.1, 2.3, 9999999.9]
    csv = written(tmp_path, "a,y\n" + "".join(f"{text or ''},1\n" for text in texts))
    assert fetched(Table(csv, target="y"), tmp_path / "home")["a"] == numbers


@pytest.mark.parametrize("kind", ["category", "boolean", "number"])
def test_nan_is_missing_in_a_column_of_any_declared_type(tmp_path: Path, kind: str) -> None:
    for number in (pa.float32(), pa.float64()):
        values = pa.array([1, float("nan"), None, 0], number)
        pq.write_table(pa.table({"a": values, "y": [1, 2, 3, 4]}), tmp_path / "rows.parquet")
        source = Table(tmp_path / "rows.parquet", target="y", types={"a": kind})
        expected = {"category": ["1", "0"], "boolean": [True, False], "number": [1, 0]}[kind]
        assert fetched(source, tmp_path / "home")["a"] == [expected[0], None, None, expected[1]]


def test_the_index_of_a_data_frame_is_no_feature(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": range(6), "y": range(6)})
    file = tmp_path / "rows.parquet"
    frame.iloc[[0, 3, 1, 5]].to_parquet(file)
    refused(lambda: Table(file, target="y"), tmp_path, "rows.parquet", "'__index_level_0__'", "index=False")
    dropped = Table(file, target="y", drop=["__index_level_0__"])
    assert fetched(dropped, tmp_path / "home")["a"] == [0, 3, 1, 5]
    frame.iloc[[0, 3, 1, 5]].to_parquet(file, index=False)
    assert fetched(Table(file, target="y"), tmp_path / "home")["a"] == [0, 3, 1, 5]


def test_a_folder_of_files_in_the_order_of_their_content(tmp_path: Path) -> None:
    for name, text in (("one", "a,y\n1,1\n2,2\n"), ("two", "y,a\n3,3\n")):
        written(tmp_path / "first", text, f"{name}.csv")
        written(tmp_path / "second", text, f"renamed-{'ba'[name == 'two']}.csv")
    first, second = (Table(tmp_path / name, target="y") for name in ("first", "second"))
    files = first.fetch(tmp_path / "home")
    assert sorted(fetched(first, tmp_path / "home")["a"]) == [1, 2, 3]
    assert fetched(first, tmp_path / "home") == fetched(second, tmp_path / "home")
    assert second.fetch(tmp_path / "home").digest == files.digest
    assert all("renamed" in row["where"] for row in rows_of(second, second.fetch(tmp_path / "home")))


def test_folders_give_splits(tmp_path: Path) -> None:
    for split, rows in (("train", "1,1\n2,2\n"), ("valid", "3,3\n"), ("test", "4,4\n")):
        written(tmp_path / "data" / split, f"a,y\n{rows}", "part.csv")
    source = Table(tmp_path / "data", target="y")
    files = source.fetch(tmp_path / "home")
    assert source.splits(files) == ("train", "val", "test")
    assert fetched(source, tmp_path / "home")["split"] == ["train", "train", "val", "test"]
    assert [source.count(files, split) for split in ("train", "val", "test", "")] == [2, 1, 1, 0]
    refused(lambda: Table(tmp_path / "data", target="y", split="a"), tmp_path, "has files for train and test")


def test_a_column_gives_splits(tmp_path: Path) -> None:
    text = "a,s,y\n1,test,1\n2,train,2\n3,validation,3\n4,train,4\n"
    source = Table(written(tmp_path, text), target="y", split="s")
    columns = fetched(source, tmp_path / "home")
    assert (columns["a"], columns["split"]) == ([2, 4, 3, 1], ["train", "train", "val", "test"])
    assert "s" not in columns
    text = text.replace("validation", "other")
    refused(
        lambda: Table(written(tmp_path, text), "y", split="s"),
        tmp_path,
        "houses.csv row 3",
        "'other'",
        "train",
    )
    refused(lambda: Table(written(tmp_path, "a,s,y\n1,train,1\n"), "y", split="s"), tmp_path, "split test")
    refused(
        lambda: Table(written(tmp_path, "a,s,y\n1,train,1\n2,,1\n"), "y", split="s"),
        tmp_path,
        "row 2",
        "empty",
    )


def test_the_latest_rows_are_the_test_split_and_ties_stay_together(tmp_path: Path) -> None:
    days = [5, 1, 3, 4, 4, 2, 4, 1, 1, 1]
    text = "a,day,y\n" + "".join(f"{n},2024-01-{day:02},{n}\n" for n, day in enumerate(days))
    source = Table(written(tmp_path, text), target="y", time="day", test_share=0.2)
    columns = fetched(source, tmp_path / "home")
    assert "day" not in columns
    # 2 of 10 rows are asked for: day 5, and day 4 with all of its 3 rows.
    assert [int(a) for a, split in zip(columns["a"], columns["split"], strict=True) if split == "test"] == [
        0,
        3,
        4,
        6,
    ]
    early = Table(tmp_path / "houses.csv", target="y", time="day", test_share=0.95)
    assert fetched(early, tmp_path / "home")["split"].count("train") == days.count(1)
    text = "a,day,y\n" + "".join(f"{n},2024-01-01,{n}\n" for n in range(5))
    refused(lambda: Table(written(tmp_path, text), "y", time="day"), tmp_path, "same 'day'")
    refused(
        lambda: Table(written(tmp_path, "a,t,y\n1,2,3\n1,,3\n"), "y", time="t"), tmp_path, "row 2", "empty"
    )
    refused(
        lambda: Table(written(tmp_path, "a,t,y\n1,x,3\n"), "y", time="t"), tmp_path, "needs dates or numbers"
    )


def test_rows_of_a_group_have_one_digest(tmp_path: Path) -> None:
    text = "a,who,y\n1,anna,1\n2,ben,2\n3,anna,3\n"
    columns = fetched(Table(written(tmp_path, text), target="y", group="who"), tmp_path / "home")
    assert "who" not in columns
    assert columns["group"][0] == columns["group"][2] != columns["group"][1]
    refused(lambda: Table(written(tmp_path, text + "4,,4\n"), "y", group="who"), tmp_path, "row 4", "empty")


def test_the_digest_covers_the_options(tmp_path: Path) -> None:
    def digest(**options: Any) -> str:
        return houses(tmp_path, **options).fetch(tmp_path / "home").digest

    first = digest()
    assert digest(test_share=0.3) == first  # test_share counts for time= only
    others = [
        digest(drop=["id", "garden"]),
        digest(types={"rooms": "category"}),
        digest(target="area"),
        digest(time="sold"),
        digest(time="sold", test_share=0.3),
        digest(group="city"),
    ]
    assert len({first, *others}) == len(others) + 1


def test_the_typed_copy_is_made_once_and_again_when_it_was_changed(tmp_path: Path, caplog: Any) -> None:
    source = houses(tmp_path)
    files = source.fetch(tmp_path / "home")
    copy = Path(files.root) / "rows.parquet"
    stamp, expected = copy.stat().st_mtime_ns, rows_of(source, files)
    assert source.fetch(tmp_path / "home") == files
    assert copy.stat().st_mtime_ns == stamp
    content = bytearray(copy.read_bytes())
    content[len(content) // 2] ^= 1
    copy.write_bytes(content)
    assert source.fetch(tmp_path / "home") == files
    assert "not what was written" in caplog.text
    assert rows_of(source, files) == expected
    (Path(files.root) / "notes.json").unlink()
    with pytest.raises(DataError, match=r"copy is gone\. Run the command again"):
        source.count(files, "")


def test_only_the_copies_that_were_used_last_are_kept(tmp_path: Path) -> None:
    roots = []
    for price in range(5):
        source = Table(written(tmp_path, HOUSES.replace("150000", str(price))), "price", ["id"])
        roots.append(source.fetch(tmp_path / "home").root)
    copies = tmp_path / "home" / "tables"
    # Other commands may read those of the last hour.
    assert sorted(map(str, copies.iterdir())) == sorted(roots)
    for age, root in zip((7200, 7300, 7000), roots[:3], strict=True):
        os.utime(root, (time.time() - age,) * 2)
    typed_copy.forget_old_copies(Path(roots[-1]))
    assert sorted(map(str, copies.iterdir())) == sorted(roots[2:])


def test_many_small_files_share_row_groups(tmp_path: Path) -> None:
    root = tmp_path / "houses"
    root.mkdir()
    for number in range(50):
        (root / f"{number:02}.csv").write_text(f"a,y\n{number},{number}\n{number},{number + 0.5}\n")
    source = Table(root, target="y")
    files = source.fetch(tmp_path / "home")
    assert pq.ParquetFile(Path(files.root) / "rows.parquet").num_row_groups == 1
    rows = [row for batch in reader(files).read(files, "", range(100)) for row in batch.to_pylist()]
    assert sorted(row["label"] for row in rows) == [half / 2 for half in range(100)]


def test_few_rows_of_a_large_table_are_read_a_row_group_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.data.tables.reading._BLOCK_BYTES", 64)
    monkeypatch.setattr(typed_copy, "_GROUP_BYTES", 1)
    source = Table(written(tmp_path, "a,y\n" + "".join(f"{n},{n}\n" for n in range(100))), target="y")
    files = source.fetch(tmp_path / "home")
    assert pq.ParquetFile(Path(files.root) / "rows.parquet").num_row_groups > 3
    monkeypatch.delattr(pq.ParquetFile, "read_row_groups")  # would hold several groups
    (batch,) = reader(files).read(files, "", [99, 0, 50])
    assert batch["label"].to_pylist() == [99, 0, 50]


def test_rows_are_read_in_any_order_across_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.data.tables.reading._BLOCK_BYTES", 64)
    monkeypatch.setattr(typed_copy, "_ROWS", 7)
    text = "a,y\n" + "".join(f"{n},{n}\n" for n in range(100))
    source = Table(written(tmp_path, text), target="y")
    files = source.fetch(tmp_path / "home")
    assert pq.ParquetFile(Path(files.root) / "rows.parquet").num_row_groups > 3
    order = [99, 0, 50, 50, *range(20, 40), 1]
    rows = [row for batch in reader(files).read(files, "", order) for row in batch.to_pylist()]
    assert [row["label"] for row in rows] == order
    assert [int(row["where"].rpartition(" ")[2]) for row in rows] == [n + 1 for n in order]
    with pytest.raises(IndexError):
        list(source.read(files, "", [100]))


def test_timestamps_of_spark_keep_their_years(tmp_path: Path) -> None:
    """Spark writes INT96, which pyarrow reads as nanoseconds: these end in the year 2262."""
    days = [datetime.datetime(9999, 12, 31), datetime.datetime(1, 1, 1), datetime.datetime(2024, 1, 31)]
    table = pa.table({"sold": pa.array(days, pa.timestamp("us")), "y": [1, 2, 3]})
    pq.write_table(table, tmp_path / "rows.parquet", use_deprecated_int96_timestamps=True)
    assert fetched(Table(tmp_path / "rows.parquet", target="y"), tmp_path / "home")["sold"] == days


BAD = {
    "a missing target": ("a,b\n1,2\n", {}, ["no column 'price'", "Table(target=...)", "it has 'a', 'b'"]),
    "a target in another form of Unicode": (
        "prix re\u0301el,b\n1,2\n",
        {"target": "prix r\u00e9el"},
        ["'prix re\\u0301el', which looks the same as 'prix r\\xe9el'", "the same Unicode characters"],
    ),
    "a misspelled target": ("Prize,b\n1,2\n", {}, ["did you mean 'Prize'?"]),
    "a column in drop in another spelling": (
        "Id,a,price\n1,1,2\n",
        {"drop": ["id"]},
        ["'id'", "Table(drop=...)", "did you mean 'Id'?"],
    ),
    "an unknown column in types": (
        "a,price\n1,2\n",
        {"types": {"b": "number"}},
        ["'b'", "types", "Repair the export"],
    ),
    "an unknown column in group": ("a,price\n1,2\n", {"group": "b"}, ["'b'", "group"]),
    "text in a declared number": (
        "a,price\n1,2\nx,3\n",
        {"types": {"a": "number"}},
        ["houses.csv row 2", "'a' has 'x'", "not a finite number"],
    ),
    "text among numbers": (
        "a,price\n" + "1,2\n" * 20 + "x1,3\n",
        {},
        [
            "houses.csv row 21",
            "'a' has 'x1'",
            "20 of 21 values of the column are numbers",
            'types={"a": "category"}',
        ],
    ),
    "no date": (
        "a,price\n" + "2024-02-28,2\n" * 20 + "2024-02-30,3\n",
        {},
        ["row 21", "2024-02-30", "are dates"],
    ),
    "decimal commas": (
        'a,price\n"3,5",1\n4,1\n"1.234,5",2\n',
        {},
        ["houses.csv row 1", "'a' has '3,5', a number with a comma", 'types={"a": "category"}'],
    ),
    "dates in another form": (
        "a,price\n31.12.2024,1\n1.2.2024,2\n",
        {},
        ["houses.csv row 1", "'a' has '31.12.2024', a date that is not in ISO 8601", "2024-12-31"],
    ),
    "dates without zeros": ("a,price\n2024-1-5,1\n2024-11-5,2\n", {}, ["'2024-1-5'", "not in ISO 8601"]),
    "American dates": ("a,price\n12/31/24,1\n1/2/24,2\n", {}, ["'12/31/24'", "not in ISO 8601"]),
    "infinity": ("a,price\n1,2\n-inf,3\n", {}, ["row 2", "'a' has '-inf'", "finite"]),
    "a number beyond 32 bits": ("a,price\n1,2\n1e39,3\n", {}, ["row 2", "'1e39'", "32 bits"]),
    "an infinite target": ("a,price\n1,2\n2,inf\n", {}, ["row 2", "'price' has 'inf'"]),
    "two columns of one name": ("a,b, a,price\n1,2,3,4\n", {}, ["two columns are named 'a'"]),
    "a column without name": (",a,price\n1,2,3\n", {}, ["column 1 has no name", "index=False"]),
    "a ragged row": ("a,b,price\n1,2,3\n4,5,6\n1,2\n", {}, ["houses.csv row 3", "has 2 values", "3 names"]),
    "a row that is too long": ('a,price\n"x\ny",3\n1,2,3\n', {}, ["houses.csv row 2", "has 3 values"]),
    "an empty file": ("", {}, ["houses.csv", "is empty"]),
    "a header only": ("a,price\n", {}, ["houses.csv", "has no rows"]),
    "the target alone": ("price\n1\n", {}, ["no column is left to learn from besides 'price'"]),
    "semicolons": ("a;price\n1;2\n", {}, ["separated by semicolons"]),
    "a column without values": (
        "a,b,price\n1,,2\n2,NA,3\n",
        {},
        ["'b' has no values in 2 rows", 'drop=["b"]'],
    ),
    "dates as target": ("a,price\n1,2024-01-01\n", {}, ["holds dates"]),
    "free text": (
        "a,price\n" + "".join(f"text {n},1\n" for n in range(101)),
        {},
        ["'a' has 101 distinct texts in 101 rows", "drop=['a']", 'types={"a": "category"}', "100 texts"],
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_table_is_refused_with_file_column_and_row(tmp_path: Path, what: str) -> None:
    text, options, said = BAD[what]
    refused(lambda: Table(written(tmp_path, text), **{"target": "price"} | options), tmp_path, *said)
    assert not list((tmp_path / "home").glob("**/*.parquet"))


@pytest.mark.parametrize(
    ("numbers", "words", "options", "warned"),
    [
        (3, ["n/k", "n/k"], {}, True),
        (2, ["red", "blue", "green"], {}, False),
        (3, ["n/k", "n/k"], {"types": {"a": "category"}}, False),
    ],
)
def test_a_column_that_is_partly_numbers_is_named(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    numbers: int,
    words: list[str],
    options: dict[str, Any],
    warned: bool,
) -> None:
    rows = [f"{number},1\n" for number in range(numbers)] + [f"{word},2\n" for word in words]
    source = Table(written(tmp_path, "a,price\n" + "".join(rows)), target="price", **options)
    source.fetch(tmp_path / "home")
    said = "houses.csv row 4: column 'a' has 'n/k', so its values are categories, although 3 of 5 values are numbers"
    assert (said in caplog.text) is warned
    assert bool(caplog.records) is warned


def test_a_column_in_drop_may_leave_the_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = Table(written(tmp_path, "ab,price\n1,2\n"), target="price", drop=["abc"])
    assert fetched(source, tmp_path / "home")["ab"] == [1]
    assert "no column 'abc', which Table(drop=...) names; did you mean 'ab'?" in caplog.text


@pytest.mark.parametrize("value", ["3.10.12", "2024.1.2", "10.0.1904", "10.0.0.1", "1,2,3", "1/2", "AB,3"])
def test_versions_addresses_and_lists_are_categories(tmp_path: Path, value: str) -> None:
    text = "a,price\n" + f'"{value}",1\n"{value}",2\n'
    files = Table(written(tmp_path, text), target="price").fetch(tmp_path / "home")
    assert typed_copy.read_notes(Path(files.root)).columns == {"a": "category"}


@pytest.mark.parametrize("value", ["3,5", "31.12.2024"])
def test_numbers_with_commas_and_other_dates_may_be_declared_as_categories(
    tmp_path: Path, value: str
) -> None:
    text = "a,price\n" + f'"{value}",1\n"{value}",2\n'
    source = Table(written(tmp_path, text), target="price", types={"a": "category"})
    files = source.fetch(tmp_path / "home")
    assert typed_copy.read_notes(Path(files.root)).columns == {"a": "category"}


def test_identifiers_may_be_declared_as_categories(tmp_path: Path) -> None:
    text = "a,price\n" + "".join(f"text {n},1\n" for n in range(101))
    table = Table(written(tmp_path, text), target="price", types={"a": "category"})
    assert len(set(fetched(table, tmp_path / "home")["a"])) == 101


def test_too_many_categories_are_refused_however_often_each_occurs(tmp_path: Path) -> None:
    text = "a,price\n" + "".join(f"user {n % 10_001},1\n" for n in range(30_003))
    refused(lambda: Table(written(tmp_path, text), "price"), tmp_path, "more than 10,000 distinct texts")


@pytest.mark.parametrize(
    ("encoding", "said"),
    [("latin-1", ["line 3", "is not UTF-8 (byte 0xf6)", "iconv"]), ("utf-16", ["is UTF-16", "iconv"])],
)
def test_another_encoding_is_named(tmp_path: Path, encoding: str, said: list[str]) -> None:
    file = tmp_path / "houses.csv"
    file.write_bytes("city,price\nBonn,1\nKöln,2\n".encode(encoding))
    refused(lambda: Table(file, target="price"), tmp_path, *said)


def test_files_must_agree_about_their_columns(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    pq.write_table(pa.table({"a": [1, 2], "y": [1, 2]}), folder / "one.parquet")
    pq.write_table(pa.table({"a": ["x", "y"], "y": [1, 2]}), folder / "two.parquet")
    table = Table(folder, target="y")
    refused(lambda: table, tmp_path, "column 'a' is a", "one.parquet", "two.parquet", "types=")
    assert set(fetched(Table(folder, "y", types={"a": "category"}), tmp_path / "home")["a"]) == {
        "1",
        "2",
        "x",
        "y",
    }
    pq.write_table(pa.table({"b": ["x", "y"], "y": [1, 2]}), folder / "two.parquet")
    refused(lambda: table, tmp_path, "All files of a table need the same columns")
    pq.write_table(pa.table({"a": pa.nulls(2), "y": [1, 2]}), folder / "two.parquet")
    assert fetched(table, tmp_path / "home")["a"].count(None) == 2
    written(folder, "a,y\n1,1\n", "three.csv")
    refused(lambda: table, tmp_path, "both CSV and Parquet")


def test_nested_columns_are_refused_unless_left_out(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2], "b": [[1], [2]], "y": [1, 2]}), tmp_path / "rows.parquet")
    refused(lambda: Table(tmp_path / "rows.parquet", "y"), tmp_path, "'b' is of type list", "drop=['b']")
    assert "b" not in fetched(Table(tmp_path / "rows.parquet", "y", drop=["b"]), tmp_path / "home")
    refused(
        lambda: Table(tmp_path / "rows.parquet", "b"),
        tmp_path,
        "'b' is of type list",
        "Write it as one of these",
    )


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 and no more")
    refused(lambda: Table(tmp_path / "rows.parquet", "y"), tmp_path, "rows.parquet: not a whole Parquet file")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"drop": "id"}, "give a list of columns, as drop=['id']"),
        ({"drop": None}, "give a list of columns, as drop=[]"),
        ({"types": {"a": ["number"]}}, "take one of number, category, boolean, date"),
        ({"types": ["a"]}, "give a kind for each name"),
        ({"types": {"a": "float"}}, "take one of number, category, boolean, date"),
        ({"split": "s", "time": "t"}, "both divide the rows"),
        ({"group": "y"}, "'y' has two uses"),
        ({"drop": ["y"]}, "'y' is in use"),
        ({"test_share": 1.5}, "between 0 and 1"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=re.escape(said)):
        Table("rows.csv", target="y", **options)


def test_a_path_is_relative_to_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "recipes" / "data", HOUSES)
    recipe = tmp_path / "recipes" / "houses.py"
    recipe.write_text(
        "from evergreen import Recipe, Table\n"
        "recipe = Recipe('houses', source=Table('data/houses.csv', target='price', drop=['id']), "
        "build_model=lambda shape, outputs: None)\n"
    )
    monkeypatch.chdir(tmp_path)
    source = load(str(recipe))[0].source
    assert isinstance(source, Table)
    assert source.fetch(tmp_path / "home").origin == str(tmp_path / "recipes" / "data" / "houses.csv")


def test_data_path_replaces_the_path_and_keeps_the_options(tmp_path: Path) -> None:
    own = houses(tmp_path / "own", types={"rooms": "category"})
    other = written(tmp_path / "other", HOUSES.replace("Köln", "Wien"))
    source = open_path(other, tmp_path / "home", (), own)
    assert source == Table(other, "price", ["id"], {"rooms": "category"})
    with tarfile.open(tmp_path / "houses.tar", "w") as tar:
        tar.add(other, "inner/houses.csv")
    packed = open_path(tmp_path / "houses.tar", tmp_path / "home", (), own)
    assert isinstance(packed, Packed)
    files = packed.fetch(tmp_path / "home")
    assert (files.kind, files.origin) == ("table", str(tmp_path / "houses.tar"))
    assert files.digest == source.fetch(tmp_path / "home").digest
    assert packed.fetch(tmp_path / "home") == files
    with pytest.raises(DataError, match=r"source=Table\(path, target=...\)"):
        open_path(other.parent, tmp_path / "home", (), ParquetImages())


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    refused(
        lambda: Table(written(tmp_path, HOUSES, "houses.txt"), "price"), tmp_path, "neither CSV nor Parquet"
    )
    (tmp_path / "empty").mkdir()
    refused(lambda: Table(tmp_path / "empty", "price"), tmp_path, "no *.csv or *.parquet or *.pq here")
