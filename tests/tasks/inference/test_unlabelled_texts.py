"""Text files for batch prediction are read in parts; an empty file is one row, which is named."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("tokenizers", reason="install the extras by: make setup EXTRAS=all")
from tasks.inference import unlabelled_texts
from tasks.inference.unlabelled_texts import Texts
from training.data.text.tokenizers import train
from training.errors import DataError

pytestmark = pytest.mark.frameworks


@pytest.fixture(scope="module")
def reader() -> Texts:
    return Texts("text", train(["a film", "a story"], 300, 4).content)


def test_lines_are_read_in_parts(reader: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"film {number}\n" for number in range(25)))
    (chunk,) = reader.find(file)
    assert chunk.rows == 25
    whole = [row for batch in reader.read(chunk) for row in batch["where"]]
    monkeypatch.setattr(unlabelled_texts, "_BATCH_ROWS", 10)
    assert [len(batch["where"]) for batch in reader.read(chunk)] == [10, 10, 5]
    assert [row for batch in reader.read(chunk) for row in batch["where"]] == whole
    assert whole[-1] == "lines.txt:25"


def test_an_empty_file_is_one_row_that_is_named(reader: Texts, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (chunk,) = reader.find(tmp_path)
    assert chunk.rows == 1
    (batch,) = reader.read(chunk)
    assert batch["error"].tolist() == [f"{tmp_path / 'empty.txt'} row 1: the text is empty"]


def test_a_byte_order_mark_is_no_part_of_a_text(reader: Texts, tmp_path: Path) -> None:
    marked, plain = tmp_path / "marked.txt", tmp_path / "plain.txt"
    marked.write_text("a film\na story\n", encoding="utf-8-sig")
    plain.write_text("a film\na story\n", encoding="utf-8")
    (marked_batch,), (plain_batch,) = (list(reader.read(reader.find(file)[0])) for file in (marked, plain))
    assert marked_batch["inputs"].tolist() == plain_batch["inputs"].tolist()


def test_a_file_of_another_encoding_is_refused_with_a_remedy_that_works_here(
    reader: Texts, tmp_path: Path
) -> None:
    """The recipe's encoding is of no use: the registered model does not know it."""
    file = tmp_path / "films.txt"
    file.write_text("a film\nein schöner Film\n", encoding="latin-1")
    with pytest.raises(DataError, match=r"films.txt line 2: is not utf-8 \(byte 0xf6\)") as caught:
        reader.find(file)
    assert "iconv -f LATIN1 -t UTF-8" in str(caught.value)
    assert "in the recipe, as" not in str(caught.value)


@pytest.mark.parametrize("kind", [pa.binary(), pa.list_(pa.string())])
def test_a_column_that_is_no_text_is_refused(reader: Texts, tmp_path: Path, kind: pa.DataType) -> None:
    values: list[Any] = [b"a film"] if kind == pa.binary() else [["a film"]]
    pq.write_table(pa.table({"text": pa.array(values, kind)}), tmp_path / "films.parquet")
    with pytest.raises(
        DataError, match=r"films\.parquet: column 'text' is of type (binary|list).* Write it as text"
    ):
        reader.find(tmp_path / "films.parquet")
