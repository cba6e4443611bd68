"""Files of a source are found whatever the case of their suffix, and what can't be read is named, not left out."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_sources import write_folders

from tasks.inference.inputs import input_files
from training.data.sources import Source
from training.data.sources.folder_targets import ImageFolder
from training.data.sources.locate import open_path
from training.data.sources.parquet import ParquetImages
from training.data.sources.parquet_index import files_with, find_files
from training.data.sources.table import Table
from training.errors import DataError, ResourceError, classify

LABELS = ["a", "b", "a"]


def parquet(file: Path, shift: int = 0) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    sizes = [number + shift for number in range(3)]
    pq.write_table(
        pa.table({"image": [bytes([size]) for size in sizes], "size": sizes, "label": LABELS}), file
    )


def csv(file: Path, shift: int = 0) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("size,label\n" + "".join(f"{number + shift},{'ab'[number % 2]}\n" for number in range(4)))


Write = Callable[[Path, int], None]
KINDS: dict[str, tuple[str, Write, Callable[[Path], Source]]] = {
    "parquet": (".parquet", parquet, lambda root: ParquetImages(root)),
    "csv": (".csv", csv, lambda root: Table(root, target="label")),
    "table in parquet": (".pq", parquet, lambda root: Table(root, target="label", drop=["image"])),
}


def test_the_order_is_that_of_the_names_and_hidden_files_are_left_out(tmp_path: Path) -> None:
    for name in ("b.csv", "B.CSV", "a.parquet", "c.Csv", ".hidden.csv", "notes.txt", "csv"):
        (tmp_path / name).touch()
    assert [file.name for file in files_with(tmp_path, (".csv", ".parquet"))] == [
        "B.CSV",
        "a.parquet",
        "b.csv",
        "c.Csv",
    ]
    assert files_with(tmp_path / "nowhere", (".csv",)) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("splits", [("",), ("train", "test")])
def test_suffixes_in_upper_case_give_the_same_data(
    tmp_path: Path, kind: str, splits: tuple[str, ...]
) -> None:
    suffix, write, source = KINDS[kind]
    for folder, name in (("lower", f"part{suffix}"), ("upper", f"PART{suffix.upper()}")):
        for number, split in enumerate(splits):
            write(tmp_path / folder / split / name, 10 * number)
    lower, upper = (source(tmp_path / folder).fetch(tmp_path / "home") for folder in ("lower", "upper"))
    assert lower.digest == upper.digest
    assert upper.files == len(splits)


def test_suffixes_in_upper_case_are_recognised(tmp_path: Path) -> None:
    parquet(tmp_path / "flat" / "PART.PARQUET")
    for number, split in enumerate(("train", "test")):
        parquet(tmp_path / "divided" / split / "PART.PARQUET", 10 * number)
    for folder in ("flat", "divided"):
        files = open_path(tmp_path / folder, tmp_path / "home").fetch(tmp_path / "home")
        assert files.kind == "parquet"
    csv(tmp_path / "table" / "ROWS.CSV")
    with pytest.raises(DataError, match="CSV files need a recipe with a table"):
        open_path(tmp_path / "table", tmp_path / "home")


def test_splits_in_names_of_upper_case(tmp_path: Path) -> None:
    for name in ("TRAIN-00000.PARQUET", "TEST.PARQUET"):
        parquet(tmp_path / name)
    assert sorted(split for split, _ in find_files(tmp_path)) == ["test", "train"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("folder", ["2024", "2024/january", "train"])
def test_files_in_other_folders_are_not_left_out_silently(tmp_path: Path, kind: str, folder: str) -> None:
    """Also a folder `train` without `test`, when it lies beside files."""
    suffix, write, source = KINDS[kind]
    write(tmp_path / "data" / f"2023{suffix}", 0)
    write(tmp_path / "data" / folder / f"rows{suffix}", 1)
    with pytest.raises(DataError, match=rf"{suffix}: .*would not be used"):
        source(tmp_path / "data").fetch(tmp_path / "home")


def test_a_folder_beside_those_of_splits_is_refused_if_it_has_rows(tmp_path: Path) -> None:
    for number, folder in enumerate(("train", "test", "holdout")):
        csv(tmp_path / "data" / folder / "rows.csv", number)
    with pytest.raises(
        DataError, match=r"holdout/rows\.csv: in a folder beside .* or the folder holdout elsewhere"
    ):
        find_files(tmp_path / "data", (".csv",), "CSV")


def test_data_in_another_format_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    csv(tmp_path / "rows.csv")
    for name in ("README.md", ".hidden.tsv", "docs/notes.txt", ".git/rows.csv", "_temporary/0/rows.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    find_files(tmp_path, (".csv",), "CSV")
    assert not caplog.records
    (tmp_path / "b.csv.gz").touch()
    (tmp_path / "c.tsv").touch()
    find_files(tmp_path, (".csv",), "CSV")
    (record,) = caplog.records
    assert (
        record.getMessage()
        == f"{tmp_path}/b.csv.gz and 1 more: not read, as only files that end in .csv are."
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_is_not_utf_8_is_refused(tmp_path: Path, kind: str) -> None:
    suffix, write, source = KINDS[kind]
    write(tmp_path / "data" / f"rows{suffix}", 0)
    name = os.fsdecode(b"M\xfcnchen" + suffix.encode())
    (tmp_path / "data" / f"rows{suffix}").rename(tmp_path / "data" / name)
    with pytest.raises(DataError, match=r"M.*nchen.*its name is not UTF-8.*Rename it"):
        source(tmp_path / "data").fetch(tmp_path / "home")


def divided(root: Path, kind: str) -> Callable[[Path], Source]:
    if kind == "images":
        write_folders(root)
        return lambda path: ImageFolder(path)
    suffix, write, source = KINDS[kind]
    for number, split in enumerate(("train", "test")):
        write(root / split / f"part{suffix}", 10 * number)
    return source


@pytest.mark.parametrize("kind", ["images", *KINDS])
def test_a_split_that_is_a_link_to_nothing_is_named(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "data"
    source = divided(root, kind)
    (root / "val").symlink_to("nowhere")
    with pytest.raises(
        DataError, match=r"data/val: a link to nowhere, which leads to no file\. Correct or remove"
    ):
        source(root).fetch(tmp_path / "home")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_a_link_to_nothing_is_named(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "data"
    source = divided(root, kind)
    link = root / "train" / f"more{KINDS[kind][0]}"
    link.symlink_to("nowhere")
    with pytest.raises(DataError, match=r"train/more\.\w+: a link to nowhere"):
        source(root).fetch(tmp_path / "home")


def test_class_folders_that_are_links_to_nothing_are_named(tmp_path: Path) -> None:
    write_folders(tmp_path / "data", splits=("",))
    (tmp_path / "data" / "fox").symlink_to("nowhere")
    with pytest.raises(DataError, match="fox: a link to nowhere"):
        ImageFolder(tmp_path / "data").fetch(tmp_path / "home")


@pytest.mark.parametrize("kind", ["images", *KINDS])
def test_a_folder_that_may_not_be_read_is_named(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests may run as root, who may read any folder: so the call of the system fails instead."""
    root = tmp_path / "data"
    source = divided(root, kind)
    (root / "val").mkdir()
    scandir = os.scandir

    def refusing(path: os.PathLike[str] | str = ".") -> object:
        if Path(path) == root / "val":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(OSError, match="Permission denied") as caught:
        source(root).fetch(tmp_path / "home")
    said = classify(caught.value)
    assert isinstance(said, ResourceError)
    assert str(root / "val") in str(said)


def test_predict_names_a_folder_that_is_a_link_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    (tmp_path / "more").symlink_to("nowhere")
    with pytest.raises(DataError, match="more: a link to nowhere"):
        input_files(tmp_path, "")
