"""Files of texts are read a few lines at a time; an empty file is a row with an empty text."""

import tracemalloc
from pathlib import Path

import pytest

from training.data.tables.values import FEATURE
from training.data.text import class_files
from training.data.text.class_files import ClassFile, class_batches, find_class_files, lines_of
from training.errors import DataError

_LINES, _BYTES = 40_000, 1000


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"\n\n",
        b"one",
        b"one\n",
        b"one\ntwo",
        b"one\n\ntwo\n\n",
        b"a\r\nb\r\n",
        "U\u2028V\x0bW\n".encode(),
    ],
)
def test_lines_are_those_of_the_whole_content(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "lines.txt"
    file.write_bytes(content)
    assert list(lines_of(file)) == content.removesuffix(b"\n").split(b"\n")


@pytest.mark.parametrize("whole", [True, False])
def test_an_empty_file_is_one_row_without_a_text(tmp_path: Path, whole: bool) -> None:
    (tmp_path / "empty.pos").touch()
    ((split, batch),) = class_batches(
        [ClassFile("train", "pos", tmp_path / "empty.pos", whole)], "utf-8", "text"
    )
    assert split == "train"
    assert batch.to_pylist() == [{"feature.text": None, "label": "pos", "file": 0, "row": 1}]


@pytest.mark.parametrize("whole", [True, False])
def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path, whole: bool) -> None:
    (tmp_path / "marked.pos").write_text("a film", encoding="utf-8-sig")
    ((_, batch),) = class_batches(
        [ClassFile("train", "pos", tmp_path / "marked.pos", whole)], "utf-8", "text"
    )
    assert batch["feature.text"].to_pylist() == ["a film"]


@pytest.mark.parametrize("splits", [("",), ("train", "test")])
def test_a_class_without_texts_is_refused(tmp_path: Path, splits: tuple[str, ...]) -> None:
    for split in splits:
        for name in ("pos", "neg", "neutral"):
            (tmp_path / split / name).mkdir(parents=True)
            (tmp_path / split / name / ".hidden").touch()
            if name != "neutral":
                (tmp_path / split / name / "1.txt").write_text("a film")
    with pytest.raises(DataError, match=r"neutral: no texts of this class\. Add some, or remove the folder"):
        find_class_files(tmp_path)


def test_a_large_file_is_not_held_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "large.txt"
    with file.open("w") as out:
        out.writelines(f"{number:0{_BYTES - 1}d}\n" for number in range(_LINES))
    tracemalloc.start()
    try:
        rows = [
            row
            for _, batch in class_batches([ClassFile("", None, file, False)], "utf-8", "text")
            for row in batch["row"]
        ]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [row.as_py() for row in rows] == list(range(1, _LINES + 1))
    assert most < _LINES * _BYTES / 2


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_lines_of_an_encoding_with_wide_line_ends_are_refused_with_the_reason(
    tmp_path: Path, encoding: str
) -> None:
    (tmp_path / "lines.pos").write_text("good\nbetter", encoding=encoding)
    lines = ClassFile("train", "pos", tmp_path / "lines.pos", False)
    with pytest.raises(
        DataError, match=rf"lines.pos: {encoding} does not write the end of a line as the byte 10"
    ):
        list(class_batches([lines], encoding, "text"))
    ((_, batch),) = class_batches([lines._replace(whole=True)], encoding, "text")
    assert batch[f"{FEATURE}text"].to_pylist() == ["good\nbetter"]


def test_long_lines_make_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_files, "_BATCH_CHARACTERS", 10)
    file = tmp_path / "books.pos"
    file.write_text("".join(f"{'x' * length}\n" for length in (4, 8, 12, 16, 1)))
    batches = [batch for _, batch in class_batches([ClassFile("", "pos", file, False)], "utf-8", "text")]
    assert [len(batch) for batch in batches] == [2, 1, 1, 1]
    assert [row for batch in batches for row in batch["row"].to_pylist()] == [1, 2, 3, 4, 5]
