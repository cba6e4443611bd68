"""Quotes in CSV files: one that is never closed is refused, and what is quoted well is read as before."""

from pathlib import Path

import pytest

from training.data.tables.reading import blocks
from training.errors import DataError

SPARK = 'quotes inside a value must be doubled; in Spark: .option("escape", "\\"")'


def written(folder: Path, text: str, name: str = "rows.csv", encoding: str = "utf-8") -> Path:
    file = folder / name
    file.write_bytes(text.encode(encoding))
    return file


def read(file: Path, *columns: str) -> list[list[str | None]]:
    """The values of each column."""
    parts = [block.rows for block in blocks(file, columns)]
    return [[value for part in parts for value in part[name].to_pylist()] for name in columns]


OPEN = {
    "in the middle": ('a,b\n1,x\n2,"y\n3,z\n4,z\n', 2),
    "without a line end at the end": ('a,b\n1,x\n2,"y\n3,z', 2),
    "in the last row": ('a,b\n1,x\n2,"y\n', 2),
    "with lines of Windows": ('a,b\r\n1,x\r\n2,"y\r\n3,z\r\n', 2),
    "before empty lines": ('a,b\n1,"y\n3,z\n\n\n', 1),
    "before quotes that stand for an empty value": ('a,b\n1,"y\n2,""\n', 1),
    "before a value in quotes": ('a,b\n1,"y\n2,z\n3,"z"\n', 1),
    "before spaces": ('a,b\n1,"y\n2,"" \n', 1),
    "before text behind quotes": ('a,b\n1,"y\n2"z\n', 1),
    "of quotes alone": ('a,b\n1,"\n', 1),
}


@pytest.mark.parametrize("columns", [("a", "b"), ("a",), ("b",), ()])
@pytest.mark.parametrize("what", OPEN)
def test_a_quote_that_is_not_closed_is_refused_with_its_row(
    tmp_path: Path, what: str, columns: tuple[str, ...]
) -> None:
    text, row = OPEN[what]
    with pytest.raises(DataError) as caught:
        read(written(tmp_path, text), *columns)
    assert str(caught.value).startswith(f"{tmp_path / 'rows.csv'} row {row}: the value of column 'b'")
    assert "a quote is probably not closed. Correct it; a quote inside a value must be doubled." in str(
        caught.value
    )


def test_rows_are_counted_over_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.data.tables.reading._BLOCK_BYTES", 64)
    text = "a,b\n" + "1,x\n" * 40
    assert read(written(tmp_path, text), "b") == [["x"] * 40]
    with pytest.raises(DataError, match=r"rows\.csv row 41: the value of column 'b'"):
        read(written(tmp_path, f'{text}1,"x\n2,y\n'), "a")


def test_a_file_with_one_column(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 2: the value of column 'a'"):
        read(written(tmp_path, 'a\n1\n"2\n3\n'), "a")


CLOSED = {
    "two lines": ('"y\nz"\n', "y\nz"),
    "no line end at the end": ('"y\nz"', "y\nz"),
    "lines of Windows": ('"y\r\nz"\r\n', "y\r\nz"),
    "empty lines behind": ('"y\nz"\n\n\n', "y\nz"),
    "spaces behind": ('"y\nz"  \n', "y\nz"),
    "a line break at the end": ('"y\n"\n', "y"),
    "spaces at the end": ('"y\nz "\n', "y\nz"),
    "quotes at the end": ('"y\n""z"""\n', 'y\n"z"'),
    "quotes and spaces at the end": ('"y\n""z"" "\n', 'y\n"z"'),
    "two quotes at the end": ('"y\n"""""\n', 'y\n""'),
    "no line break": ('"y"\n', "y"),
    "an empty value": ('""\n', None),
    "a quote for inches": ('5"\n', '5"'),
}


@pytest.mark.parametrize("what", CLOSED)
def test_a_last_value_in_quotes_is_read(tmp_path: Path, what: str) -> None:
    value, expected = CLOSED[what]
    file = written(tmp_path, f"a,b\n1,x\n2,{value}")
    assert read(file, "a", "b") == [["1", "2"], ["x", expected]]
    assert read(file, "b", "a") == [["x", expected], ["1", "2"]]
    assert read(file, "a") == [["1", "2"]]


def test_a_last_column_that_is_not_wanted_need_not_be_utf_8(tmp_path: Path) -> None:
    file = written(tmp_path, 'a,b\n1,Köln\n2,"K\nöln"\n', encoding="latin-1")
    assert read(file, "a") == [["1", "2"]]
    with pytest.raises(DataError, match="is not UTF-8"):
        read(file, "b")


def test_quotes_of_a_tsv_file_are_text(tmp_path: Path) -> None:
    file = written(tmp_path, 'a\tb\n1\t"y\n2\tz\n', "rows.tsv")
    assert read(file, "a", "b") == [["1", "2"], ['"y', "z"]]
    assert read(file, "a") == [["1", "2"]]


def test_quotes_behind_backslashes_have_a_remedy_for_spark(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(written(tmp_path, 'a,b\n1,x\n2,"say \\"a, b\\" now"\n'), "a")
    assert str(caught.value) == (
        f"{tmp_path / 'rows.csv'} row 2: has 3 values, and the header has 2 names. Correct it; {SPARK}."
    )
    with pytest.raises(DataError) as caught:
        read(written(tmp_path, 'a,b\n1,x\n2,"he says \\""\n3,y\n'), "a")
    assert str(caught.value).endswith(f"not closed. Correct it; {SPARK}.")
    with pytest.raises(DataError, match="a value that holds a comma needs quotes around it"):
        read(written(tmp_path, "a,b\n1,x,y\n"), "a")
