"""The source of text: each layout gives the same rows, and what is refused names the file and the row."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_texts import write_csv
from source_contract import Change, SourceContract

pytest.importorskip("tokenizers", reason="install the extras by: make setup EXTRAS=all")
from training.data.sources import Source
from training.data.sources.digits import Digits
from training.data.sources.locate import check_has_target, open_path, reader, without_target
from training.data.sources.text import Text
from training.errors import DataError, SettingError

pytestmark = pytest.mark.frameworks
ROWS = [("a good film", "pos"), ('says "well done"', "pos"), ("dull,\ttoo long", "neg"), ("Ünlösbar", "neg")]


def rows_of(source: Text, folder: Path) -> list[tuple[Any, Any, str]]:
    """(text, label, split) of all rows, sorted."""
    files = source.fetch(folder)
    read = reader(files)
    return sorted(
        (row["feature.text"], row["label"], row["split"])
        for split in read.splits(files)
        for batch in read.read(files, split, range(read.count(files, split)))
        for row in batch.to_pylist()
    )


def write_files(folder: Path, rows: list[tuple[str, str]], encoding: str = "utf-8") -> Path:
    folder.mkdir(parents=True)
    for label in sorted({label for _, label in rows}):
        lines = [text for text, of in rows if of == label]
        (folder / f"reviews.{label}").write_text("\n".join(lines) + "\n", encoding=encoding)
    return folder


def write_folders(folder: Path, rows: list[tuple[str, str]]) -> Path:
    for number, (text, label) in enumerate(rows):
        (folder / label).mkdir(parents=True, exist_ok=True)
        (folder / label / f"{number}.txt").write_text(text)
    return folder


def test_every_layout_gives_the_same_rows(tmp_path: Path) -> None:
    table = pa.table({"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]})
    pq.write_table(table, tmp_path / "rows.parquet")
    quoted = [text.replace('"', '""') for text, _ in ROWS]
    csv = [f'"{text}",{label}' for text, (_, label) in zip(quoted, ROWS, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *csv]) + "\n")
    expected = [(text, label, "") for text, label in sorted(ROWS)]
    paths = [
        tmp_path / "rows.parquet",
        tmp_path / "rows.csv",
        write_files(tmp_path / "files", ROWS),
        write_folders(tmp_path / "folders", ROWS),
    ]
    for path in paths:
        assert rows_of(Text(path), tmp_path / "home") == expected, path


def test_a_tsv_file_has_no_quotes(tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").write_text('label\ttext\npos\tsays "well\nneg\ta, b\n')
    assert rows_of(Text(tmp_path / "rows.tsv"), tmp_path / "home") == [
        ("a, b", "neg", ""),
        ('says "well', "pos", ""),
    ]


def test_folders_may_divide_the_rows(tmp_path: Path) -> None:
    write_folders(tmp_path / "d" / "train", ROWS[:3])
    write_folders(tmp_path / "d" / "test", ROWS[1:])
    assert [row[2] for row in rows_of(Text(tmp_path / "d"), tmp_path / "home")].count("test") == 3


def test_names_of_files_do_not_change_the_digest(tmp_path: Path) -> None:
    files = Text(write_folders(tmp_path / "one", ROWS)).fetch(tmp_path / "home")
    other = Text(write_folders(tmp_path / "other", ROWS[::-1])).fetch(tmp_path / "home")
    assert files.digest == other.digest


def test_the_tokenizer_is_part_of_the_digest(tmp_path: Path) -> None:
    path = write_files(tmp_path / "files", ROWS)
    (tmp_path / "tokenizer.json").write_text("{}")
    plain, given = (
        Text(path, tokenizer=tokenizer).fetch(tmp_path / "home")
        for tokenizer in (None, tmp_path / "tokenizer.json")
    )
    assert plain.digest != given.digest
    assert Path(given.tokenizer).read_text() == "{}"


def test_latin_1_has_to_be_declared(tmp_path: Path) -> None:
    path = write_files(tmp_path / "files", ROWS, "latin-1")
    with pytest.raises(
        DataError, match=r'reviews.neg line 2: is not utf-8 \(byte 0xdc\).*encoding="latin-1"'
    ):
        Text(path).fetch(tmp_path / "home")
    assert ("Ünlösbar", "neg", "") in rows_of(Text(path, encoding="latin-1"), tmp_path / "home")
    for none in ("latin-0", "hex", "rot13"):
        with pytest.raises(SettingError, match="no such encoding"):
            Text(path, encoding=none)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.csv": "words,label\nx,y\n"}, r"a.csv: no column 'text'; .*Text\(text=...\)"),
        ({"a.csv": "text,class\nx,y\n"}, r"a.csv: no column 'label'; .*Text\(target=...\)"),
        ({"a.csv": "text,label\nx,y\n", "b.tsv": "text\tlabel\nx\ty\n"}, "holds files of .csv and .tsv"),
        ({"reviews.pos": "x\n"}, "texts of fewer than 2 classes"),
        ({"a.pos": "x\n", "b.neg": "y\n"}, r"\(a.pos, b.neg\) are not named NAME.CLASS with one NAME"),
        ({"pos/1.txt": "x", "readme.md": "y"}, "readme.md: beside the folders of classes"),
        ({"train/pos/1.txt": "x", "train/neg/1.txt": "x"}, "has train/, and beside it no test/"),
        ({"pos/more/1.txt": "x", "neg/1.txt": "y"}, "more: a folder in the folder of a class"),
    ],
)
def test_what_is_refused(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / name).write_text(text)
    with pytest.raises(DataError, match=message):
        Text(tmp_path / "d").fetch(tmp_path / "home")


def test_data_path_replaces_the_files_of_the_recipe(tmp_path: Path) -> None:
    inner = write_files(tmp_path / "packed" / "rt", ROWS)
    source = open_path(tmp_path / "packed", tmp_path / "home", own=Text("elsewhere", target="polarity"))
    assert source == Text(inner, target="polarity")
    with pytest.raises(SettingError, match=r"data.path: text has no download"):
        Text().fetch(tmp_path)


def test_a_tokenizer_beside_the_recipe_reads_texts_in_an_archive(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_files(tmp_path / "packed", ROWS)
    archive = Path(shutil.make_archive(str(tmp_path / "reviews"), "zip", tmp_path / "packed"))
    digests = []
    for folder, content in (("one", "{}"), ("one", "{}"), ("moved", "{}"), ("one", '{"a": 1}')):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "tokenizer.json").write_text(content)
        own = Text("elsewhere", tokenizer="tokenizer.json").beside(tmp_path / folder)
        files = open_path(archive, tmp_path / "home", own=own).fetch(tmp_path / "home")
        assert Path(files.tokenizer).read_text() == content
        digests.append(files.digest)
    assert digests[0] == digests[1] == digests[2] != digests[3]
    (note,) = (tmp_path / "home" / "unpacked").glob("*.json")
    assert all(digest in note.read_text() for digest in digests)
    assert "unpacked again" not in caplog.text


def test_texts_without_a_target_come_from_every_layout(tmp_path: Path) -> None:
    texts = [text for text, _ in ROWS]
    pq.write_table(pa.table({"text": texts, "other": [1, 2, 3, 4]}), tmp_path / "rows.parquet")
    (tmp_path / "rows.txt").write_text("\n".join(texts) + "\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_text("\n".join(texts[:3]))
    (folder / "b.txt").write_text(texts[3])
    for path in (
        tmp_path / "rows.parquet",
        tmp_path / "rows.txt",
        folder,
        write_files(tmp_path / "files", ROWS),
    ):
        rows = rows_of(Text(path, target=None), tmp_path / "home")
        assert rows == [(text, 0.0, "") for text in sorted(texts)], path


def test_splits_of_texts_without_a_target(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / "texts" / split).mkdir(parents=True)
        (tmp_path / "texts" / split / "a.txt").write_text(f"of {split}\n")
    source = Text(tmp_path / "texts", target=None)
    assert rows_of(source, tmp_path / "home") == [("of test", 0.0, "test"), ("of train", 0.0, "train")]
    (tmp_path / "texts" / "more").mkdir()
    with pytest.raises(
        DataError, match=r"has the folder more/, and not just train and test. Give a .txt file"
    ):
        source.fetch(tmp_path / "home")


def test_a_problem_and_a_source_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SettingError, match=r"nothing that a classification could predict"):
        check_has_target(Text("rows.csv", target=None), "classification")
    with pytest.raises(SettingError, match=r"a language_model learns texts, and Digits has other rows"):
        without_target(Digits(), "language_model")


class TestTextInATable(SourceContract):
    kind, rows, needed = "text", {"": 40}, (".", "rows.csv")

    def write(self, folder: Path) -> None:
        write_csv(folder / "rows.csv", rows=40)

    def source(self, folder: Path) -> Source:
        return Text(folder / "rows.csv")

    def changes(self) -> Sequence[Change]:
        def replace(old: str, new: str) -> Change:
            def change(folder: Path) -> None:
                text = (folder / "rows.csv").read_text()
                (folder / "rows.csv").write_text(text.replace(old, new, 1))

            return change

        return [
            replace("film", "movie"),
            replace(",pos", ",neg"),
            lambda folder: write_csv(folder / "rows.csv", 39),
        ]


class TestTextInFolders(SourceContract):
    """A file for each text, with a tokenizer of the recipe."""

    kind, rows = "text", {"train": 4, "test": 2}

    def write(self, folder: Path) -> None:
        write_folders(folder / "train", ROWS)
        write_folders(folder / "test", [("new", "pos"), ("old", "neg")])
        (folder.with_name(f"{folder.name}.json")).write_text("{}")

    def source(self, folder: Path) -> Source:
        return Text(folder, tokenizer=folder.with_name(f"{folder.name}.json"))

    def changes(self) -> Sequence[Change]:
        train = "train/pos/0.txt"
        return [
            lambda folder: (folder / train).write_text("a good movie"),
            lambda folder: (folder / train).unlink(),
            lambda folder: (folder / train).rename(folder / "train" / "neg" / "moved.txt"),
            lambda folder: (folder / train).rename(folder / "test" / "pos" / "moved.txt"),
        ]


class TestTextWithoutATarget(SourceContract):
    kind, rows = "text", {"train": 3, "test": 1}

    def write(self, folder: Path) -> None:
        for name, texts in (("train/a", "one\ntwo\n"), ("train/b", "three\n"), ("test/c", "four\n")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.txt").write_text(texts)

    def source(self, folder: Path) -> Source:
        return Text(folder, target=None)

    def changes(self) -> Sequence[Change]:
        return [
            lambda folder: (folder / "train" / "b.txt").write_text("three!\n"),
            lambda folder: (folder / "train" / "b.txt").unlink(),
            lambda folder: (folder / "train" / "b.txt").rename(folder / "test" / "b.txt"),
        ]


def test_suffixes_in_upper_case_give_the_same_rows(tmp_path: Path) -> None:
    write_csv(tmp_path / "tables" / "ROWS.CSV", 8)
    write_csv(tmp_path / "rows.csv", 8)
    assert rows_of(Text(tmp_path / "tables"), tmp_path / "home") == rows_of(
        Text(tmp_path / "rows.csv"), tmp_path / "home"
    )
    (tmp_path / "classes").mkdir()
    for name in ("pos.TXT", "neg.TXT"):
        (tmp_path / "classes" / name).write_text("a text\nanother\n")
    assert {label for _, label, _ in rows_of(Text(tmp_path / "classes"), tmp_path / "home")} == {"pos", "neg"}


@pytest.mark.parametrize("target", ["label", None])
def test_a_split_that_is_a_link_to_nothing_is_named(tmp_path: Path, target: str | None) -> None:
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        for name in ("NAME.pos", "NAME.neg"):
            (tmp_path / split / name).write_text("a text\nanother\n")
    (tmp_path / "val").symlink_to("nowhere")
    with pytest.raises(DataError, match="val: a link to nowhere"):
        Text(tmp_path, target=target).fetch(tmp_path / "home")
