"""Images with a number for each, in a folder with a table or in Parquet: what is read, and what is refused."""

import os
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pictures_with_numbers import TARGET, ink_of, pixels_of, write_folder, write_parquet

from evergreen import Cifar10, Digits, IdxFiles, ImageFolder, ParquetImages, Table
from training.data.sources.locate import open_path, with_numbers
from training.data.sources.target_numbers import target_texts
from training.errors import DataError, SettingError
from training.records import SourceFiles


def numbers_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {Path(row["where"]).name: float(row["label"]) for row in rows}


def test_each_image_has_its_number(tmp_path: Path, rows_of) -> None:
    source = ImageFolder(write_folder(tmp_path / "scans"), target=TARGET)
    files = source.fetch(tmp_path / "home")
    assert (files.files, files.classes, files.target) == (12, (), TARGET)
    assert list(source.splits(files)) == [""]
    rows = rows_of(files, "")
    expected = {f"{number:04d}.png": ink for number, ink in enumerate(ink_of(pixels_of(12)).tolist())}
    assert numbers_of(rows) == expected
    assert all(row["image"] == Path(row["where"]).read_bytes() for row in rows)
    assert [float(row["label"]) for row in rows] != sorted(float(row["label"]) for row in rows)


def test_folders_of_splits_have_a_table_each_or_one_above_them(tmp_path: Path, rows_of) -> None:
    apart = tmp_path / "apart"
    for split in ("train", "test", "valid"):
        write_folder(apart / split)
    above = tmp_path / "above"
    lines = ["file_name,ink"]
    for split in ("train", "test", "valid"):
        shutil.copytree(apart / split, above / split)
        table = (above / split / "metadata.csv").read_text().splitlines()[1:]
        lines += [f"{split}/{name},{ink}" for name, ink, _ in (line.split(",") for line in table)]
        (above / split / "metadata.csv").unlink()
    (above / "ages.csv").write_text("\n".join(lines))
    apart_source = ImageFolder(apart, target=TARGET)
    above_source = ImageFolder(above, target=TARGET, targets="ages.csv")
    files = apart_source.fetch(tmp_path)
    assert list(apart_source.splits(files)) == ["train", "val", "test"]
    assert numbers_of(rows_of(files, "val")) == numbers_of(rows_of(files, "train"))
    assert above_source.fetch(tmp_path).digest == files.digest


def test_a_decimal_is_the_number_that_its_text_is() -> None:
    values = pa.array([Decimal("2.3"), Decimal("-0.7")], pa.decimal128(4, 2))
    assert target_texts(values, TARGET, str) == ["2.3", "-0.7"]


def test_only_content_counts(tmp_path: Path) -> None:
    def digest(root: Path, target: str = TARGET) -> str:
        return ImageFolder(root, target=target).fetch(tmp_path / "home").digest

    root = write_folder(tmp_path / "scans")
    known = digest(root)
    other = write_folder(tmp_path / "others", folders=3)
    assert digest(other) == known
    table = (other / "metadata.csv").read_text().splitlines()
    (other / "metadata.csv").write_text("\n".join([table[0], *reversed(table[1:])]))
    assert digest(other) == known
    pq.write_table(
        pa.table({"file_name": [line.split(",")[0] for line in table[1:]], TARGET: ink_of(pixels_of(12))}),
        other / "metadata.parquet",
    )
    again = ImageFolder(other, target=TARGET, targets="metadata.parquet").fetch(tmp_path / "home")
    assert again.digest == known
    (root / "metadata.csv").write_text((root / "metadata.csv").read_text().replace("ink", "age"))
    assert digest(root, "age") != known


BROKEN = {
    "an image without a row": (lambda t: t[:-1], "1/0011.png: has no row in"),
    "an image named twice": (
        lambda t: [*t, "0/../1/0011.png,7,x"],
        "metadata.csv row 13: names the image 1/0011.png, which",
    ),
    "a file that is missing": (lambda t: [*t, "0/none.png,7,x"], "metadata.csv row 13: no image "),
    "a file that is no image": (
        lambda t: [*t, "notes.txt,7,x"],
        "metadata.csv row 13: notes.txt is not an image file",
    ),
    "a path that leads out": (lambda t: [*t, "../0.png,7,x"], "row 13: '../0.png' leads out of"),
    "an absolute path": (lambda t: [*t, "/0.png,7,x"], "row 13: '/0.png' leads out of"),
    "text for a path": (
        lambda t: [*t, f"{'é' * 200},7,x"],
        f"metadata.csv row 13: column 'file_name' has '{'é' * 40}…' of 400 bytes, and a file's name has at most 255",
    ),
    "a path that is too long": (lambda t: [*t, f"{'0/' * 3000}0.png,7,x"], "row 13: no image"),
    "an integer that float64 rounds": (
        lambda t: [*t[:-1], "1/0011.png,9007199254740993,x"],
        "row 12: column 'ink' has 9007199254740993, an integer that a float64 does not hold",
    ),
    "no path": (lambda t: [*t, ",7,x"], "row 13: column 'file_name' is empty"),
    "text": (
        lambda t: [*t[:-1], "1/0011.png,much,x"],
        "row 12: column 'ink' has 'much', not a finite number",
    ),
    "infinity": (lambda t: [*t[:-1], "1/0011.png,inf,x"], "row 12: column 'ink' has 'inf'"),
    "NaN": (lambda t: [*t[:-1], "1/0011.png,NaN,x"], "row 12: column 'ink', the target, is empty or NaN"),
    "no number": (lambda t: [*t[:-1], "1/0011.png,,x"], "row 12: column 'ink', the target, is empty"),
    "a ragged row": (lambda t: [*t[:-1], "1/0011.png,7"], "row 12: has 2 values"),
    "a name twice": (lambda t: [t[0].replace("writer", TARGET), *t[1:]], "two columns are named 'ink'"),
    "no column of paths": (lambda t: [t[0].replace("file_name", "file"), *t[1:]], "no column 'file_name'"),
    "no target": (lambda t: [t[0].replace("ink", "Inks"), *t[1:]], "did you mean 'Inks'?"),
    "no rows": (lambda t: t[:1], "metadata.csv: has no rows"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_table_is_refused_by_row(tmp_path: Path, case: str) -> None:
    change, message = BROKEN[case]
    root = write_folder(tmp_path / "scans")
    (root / "notes.txt").write_text("notes")
    table = root / "metadata.csv"
    table.write_text("\n".join(change(table.read_text().splitlines())) + "\n")
    with pytest.raises(DataError) as caught:
        ImageFolder(root, target=TARGET).fetch(tmp_path / "home")
    assert message in str(caught.value)
    assert str(root) in str(caught.value)


def test_text_in_a_parquet_table_is_refused_by_type(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "scans")
    pq.write_table(pa.table({"file_name": ["0/0000.png"], TARGET: ["7"]}), root / "ages.parquet")
    with pytest.raises(DataError, match=r"ages.parquet: column 'ink', the target, is of type string"):
        ImageFolder(root, target=TARGET, targets="ages.parquet").fetch(tmp_path)


@pytest.mark.parametrize(
    ("names", "kind"), [(pa.array([b"0/0000.png"]), "binary"), (pa.array([0]), "int64")], ids=str
)
def test_paths_in_a_parquet_table_are_text(tmp_path: Path, names: pa.Array, kind: str) -> None:
    root = write_folder(tmp_path / "scans")
    pq.write_table(pa.table({"file_name": names, TARGET: [7]}), root / "ages.parquet")
    with pytest.raises(
        DataError,
        match=rf"ages.parquet: column 'file_name' is of type {kind}, .* Write the column as strings",
    ):
        ImageFolder(root, target=TARGET, targets="ages.parquet").fetch(tmp_path)


def test_links_to_folders_and_images_are_followed(tmp_path: Path) -> None:
    """As in folders of classes."""
    disk, root = tmp_path / "disk", tmp_path / "scans"
    for split in ("train", "test"):
        write_folder(disk / split)
    shutil.copytree(disk / "test", root / "test")
    (root / "train").symlink_to(disk / "train")
    image = root / "test/0/0000.png"
    image.unlink()
    image.symlink_to(disk / "test/0/0000.png")
    linked, known = (ImageFolder(folder, target=TARGET).fetch(tmp_path / "home") for folder in (root, disk))
    assert linked.digest == known.digest


@pytest.mark.parametrize(
    ("link", "to", "message"),
    [
        ("0/link.png", "nowhere.png", "0/link.png: a link to nowhere.png, which leads to no file. Correct"),
        ("0/link.png", "link.png", "0/link.png: a link to link.png, which leads to no file. Correct"),
        ("more", "/nowhere/more", "more: a link to /nowhere/more, which leads to no file. Correct"),
        ("0/up", "..", "0/up: a link to a folder above it, so the images have no end. Remove the link"),
    ],
)
def test_a_link_without_end_is_refused(tmp_path: Path, link: str, to: str, message: str) -> None:
    root = write_folder(tmp_path / "scans")
    (root / link).symlink_to(to)
    with pytest.raises(DataError) as caught:
        ImageFolder(root, target=TARGET).fetch(tmp_path / "home")
    assert f"{root}/{message}" in str(caught.value)


def test_an_image_that_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "scans")
    (root / "0/0000.png").unlink()
    os.mkfifo(root / "0/0000.png")
    with pytest.raises(
        DataError, match=r"0/0000\.png: is a pipe, not a plain file\. Remove it and its row"
    ) as caught:
        ImageFolder(root, target=TARGET).fetch(tmp_path / "home")
    assert "class" not in str(caught.value)


def test_a_name_with_spaces_around_it_is_refused(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "scans")
    (root / "1/0011.png").rename(root / " 0011.png")
    table = root / "metadata.csv"
    table.write_text(table.read_text().replace("1/0011.png", '" 0011.png"'))
    with pytest.raises(
        DataError, match=r"row 12: no image .*, but '.*/ 0011\.png'\. Spaces .* rename the image"
    ):
        ImageFolder(root, target=TARGET).fetch(tmp_path / "home")


def test_a_folder_that_is_not_divided_whole_is_refused(tmp_path: Path) -> None:
    def refusal(root: Path) -> str:
        with pytest.raises(DataError) as caught:
            ImageFolder(root, target=TARGET).fetch(tmp_path / "home")
        return str(caught.value)

    root = tmp_path / "scans"
    root.mkdir()
    assert f"{root / 'metadata.csv'}: no such table of targets" in refusal(root)
    write_folder(root / "train")
    assert f"{root / 'test'}: missing" in refusal(root)
    (root / "test").mkdir()
    assert "no images in test/" in refusal(root)
    write_folder(root / "test")
    write_folder(root)
    assert "a second table of targets" in refusal(root)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": "ages.csv"}, "name the column of numbers"),
        ({"target": "age", "classes": ("a",)}, "which has no classes"),
        ({"target": "file_name"}, "this column has the images' paths"),
        ({"target": "age", "targets": "../ages.csv"}, "lies inside the image folder"),
        ({"target": "age", "targets": "/ages.csv"}, "lies inside the image folder"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        ImageFolder("scans", **options)


def in_parquet(file: Path, labels: pa.Array, **more: Any) -> SourceFiles:
    images = pa.array([b"image"] * len(labels))
    pq.write_table(pa.table({"image": images, "label": labels, **more}), file)
    return with_numbers(ParquetImages(file)).fetch(file.parent / "home")


@pytest.mark.parametrize(
    "labels",
    [
        pa.array([-3, 0, 7], pa.int16()),
        pa.array([-3, -0.0, 7], pa.float32()),
        pa.array([-3.0, 0.0, 7.0]).dictionary_encode(),
    ],
)
def test_numbers_in_parquet(tmp_path: Path, labels: pa.Array, rows_of) -> None:
    files = in_parquet(tmp_path / "data.parquet", labels, split=["train", "test", "train"])
    assert files.target == "label"
    assert [row["label"] for row in rows_of(files, "train")] == ["-3.0", "7.0"]
    assert [row["label"] for row in rows_of(files, "test")] == ["0.0"]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (pa.array([1.0, None]), "row 1: column 'label', the target, is empty"),
        (pa.array([1.0, np.nan]), "row 1: column 'label', the target, is empty or NaN"),
        (pa.array([1.0, np.inf]), "row 1: column 'label' has inf, not a finite number"),
        (pa.array(["1", "2"]), "column 'label', the target, is of type string"),
        (pa.array([True, False]), "column 'label', the target, is of type bool"),
        (
            pa.array([1, 2**53 + 1], pa.uint64()),
            f"row 1: column 'label' has {2**53 + 1}, an integer that a float64 does not hold. Subtract",
        ),
        (pa.array([2**53, -(2**53) - 1]), f"row 1: column 'label' has {-(2**53) - 1}, an integer"),
        (pa.array([], pa.float64()), "has no rows"),
    ],
)
def test_what_is_no_number_in_parquet(tmp_path: Path, labels: pa.Array, message: str) -> None:
    with pytest.raises(DataError) as caught:
        in_parquet(tmp_path / "data.parquet", labels)
    assert str(caught.value).startswith(str(tmp_path / "data.parquet"))
    assert message in str(caught.value)


def test_a_missing_column_in_parquet(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "data.parquet")
    with pytest.raises(
        DataError, match=r"no column 'inkk'; did you mean 'ink'\? .*ParquetImages\(label=...\)"
    ):
        with_numbers(ParquetImages(file, label="inkk")).fetch(tmp_path)


@pytest.mark.parametrize("source", [Digits(), Cifar10(), IdxFiles("MNIST"), ImageFolder("scans")])
def test_sources_of_classes_say_how_to_give_numbers(source: Any) -> None:
    with pytest.raises(SettingError, match=r"has images with classes.* ImageFolder\(path, target="):
        with_numbers(source)


def test_declared_classes_are_no_numbers() -> None:
    with pytest.raises(SettingError, match="have no classes"):
        with_numbers(ParquetImages("data.parquet", classes=("a", "b")))


def test_tables_have_numbers() -> None:
    source = Table("prices.csv", target="price")
    assert with_numbers(source) is source


def test_an_archive_replaces_the_folder(tmp_path: Path, rows_of) -> None:
    """The images of `data.path` are read with the recipe's target, also out of an archive."""
    root = write_folder(tmp_path / "inside" / "scans")
    archive = shutil.make_archive(str(tmp_path / "scans"), "zip", root.parent)
    own = ImageFolder("elsewhere", target=TARGET)
    packed = with_numbers(open_path(Path(archive), tmp_path / "home", (), own)).fetch(tmp_path / "home")
    plain = with_numbers(open_path(root, tmp_path / "home", (), own)).fetch(tmp_path / "home")
    assert packed.digest == plain.digest
    assert numbers_of(rows_of(packed, "")) == numbers_of(rows_of(plain, ""))


@pytest.mark.parametrize("targets", ["images/labels.csv", "labels.csv"])
def test_a_table_beside_its_images_in_the_only_folder(tmp_path: Path, targets: str) -> None:
    """The recipe's path of the table decides which folder is meant."""
    root = tmp_path / "scans"
    write_folder(root / "images", table="labels.csv")
    own = ImageFolder("elsewhere", target=TARGET, targets=targets)
    files = with_numbers(open_path(root, tmp_path / "home", (), own)).fetch(tmp_path / "home")
    folder = root if "/" in targets else root / "images"
    assert files.origin == str(folder)
    assert files.digest == ImageFolder(folder, target=TARGET, targets=targets).fetch(tmp_path / "home").digest
