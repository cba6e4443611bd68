"""Text files for batch prediction are read in parts; an empty file is one row, which is named."""

from pathlib import Path

import pytest

pytest.importorskip("tokenizers", reason="install the extras by: make setup EXTRAS=all")
from tasks.inference import unlabelled_texts
from tasks.inference.unlabelled_texts import Texts
from training.data.text.tokenizers import train

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
