"""Folders of images: order and digest depend on the content, and every unexpected file is refused by name."""

from pathlib import Path

import pyarrow as pa
import pytest
from small_sources import write_folders

from training.data.sources import folder
from training.data.sources.folder import ImageFolder
from training.data.sources.folder_listing import ImageFile
from training.errors import DataError, SettingError
from training.records import SourceFiles


def test_rows_are_the_files(tmp_path: Path, rows_of) -> None:
    root = write_folders(tmp_path / "data")
    source = ImageFolder(root)
    files = source.fetch(tmp_path / "home")
    assert (files.kind, files.files, files.classes) == ("folder", 24, ("cat", "dog"))
    assert files.bytes == sum(file.stat().st_size for file in root.rglob("*.*"))
    assert list(source.splits(files)) == ["train", "test"]
    for split in ("train", "test"):
        rows = rows_of(files, split)
        assert sorted(row["where"] for row in rows) == sorted(
            str(file) for file in (root / split).rglob("*.*")
        )
        for row in rows:
            assert row["image"] == Path(row["where"]).read_bytes()
            assert row["label"] == Path(row["where"]).parent.name
            assert (row["height"], row["width"], row["channels"], row["split"]) == (0, 0, 0, split)


def test_undivided(tmp_path: Path, rows_of) -> None:
    source = ImageFolder(str(write_folders(tmp_path / "data", splits=("",))))
    files = source.fetch(tmp_path / "home")
    assert list(source.splits(files)) == [""]
    assert source.count(files, "") == len(rows_of(files, "")) == 12


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for label in ("train", "car"):
        (tmp_path / "data" / label).mkdir(parents=True)
        (tmp_path / "data" / label / "1.jpg").write_bytes(label.encode())
    files = ImageFolder(tmp_path / "data").fetch(tmp_path / "home")
    assert files.classes == ("car", "train")


def test_splits_of_another_name_are_refused_with_the_names_that_count(tmp_path: Path) -> None:
    root = write_folders(tmp_path / "data")
    (root / "train").rename(root / "Training")
    (root / "test").rename(root / "Testing")
    with pytest.raises(DataError, match=r"T(rain|est)ing/.* splits are called train/, val/ and test/"):
        ImageFolder(root).fetch(tmp_path / "home")


def test_order_and_digest_ignore_names_times_and_places(tmp_path: Path, rows_of) -> None:
    first = ImageFolder(write_folders(tmp_path / "one", shuffle=1)).fetch(tmp_path / "home")
    second = ImageFolder(write_folders(tmp_path / "elsewhere" / "two", shuffle=2)).fetch(tmp_path / "home")
    assert first.digest == second.digest
    assert first.root != second.root
    contents = [[row["image"] for row in rows_of(files, "train")] for files in (first, second)]
    assert contents[0] == contents[1]


def test_declared_classes_fix_the_order(tmp_path: Path) -> None:
    assert ImageFolder(write_folders(tmp_path / "data"), ("dog", "cat")).fetch(tmp_path).classes == (
        "dog",
        "cat",
    )


def test_what_systems_leave_behind_is_ignored(tmp_path: Path) -> None:
    root = write_folders(tmp_path / "data")
    before = ImageFolder(root).fetch(tmp_path / "home").digest
    for stray in (
        ".DS_Store",
        "train/Thumbs.db",
        "train/cat/.hidden.jpg",
        "train/cat/desktop.ini",
        "__MACOSX/x.jpg",
    ):
        (root / stray).parent.mkdir(exist_ok=True)
        (root / stray).write_bytes(b"x")
    assert ImageFolder(root).fetch(tmp_path / "home").digest == before


REFUSALS = {
    "a class missing in test": (lambda root: clear(root / "test/dog"), "test/dog", ()),
    "a class missing though declared": (lambda _: None, "train/fox", ("cat", "dog", "fox")),
    "a class not declared": (lambda _: None, "/dog", ("cat",)),
    "an empty class": (lambda root: (root / "train/fox").mkdir(), "train/fox", ()),
    "no test": (lambda root: clear(root / "test"), "/test: missing", ()),
    "a text file": (lambda root: (root / "train/cat/note.txt").write_text("x"), "note.txt", ()),
    "a text file beside classes": (
        lambda root: (root / "train/labels.csv").write_text("x"),
        "labels.csv",
        (),
    ),
    "a file beside the splits": (lambda root: (root / "README.md").write_text("x"), "README.md", ()),
    "a third split": (lambda root: (root / "val").mkdir(), "/val", ()),
    "a folder in a class": (lambda root: (root / "train/cat/more").mkdir(), "cat/more", ()),
    "an image of no class": (lambda root: (root / "train/1.jpg").write_bytes(b"x"), "train/1.jpg", ()),
    "zero bytes": (lambda root: (root / "train/cat/none.jpg").touch(), "none.jpg", ()),
    "an image whose name is not UTF-8": (
        lambda root: next((root / "train/cat").iterdir()).rename(root / "train/cat/\udcff.jpg"),
        "its name is not UTF-8",
        (),
    ),
    "a class whose name is not UTF-8": (
        lambda root: (root / "train/cat").rename(root / "train/\udcff"),
        "its name is not UTF-8",
        (),
    ),
    "a broken link": (lambda root: (root / "train/cat/link.jpg").symlink_to("nowhere"), "link.jpg", ()),
}


def clear(folder: Path) -> None:
    for file in sorted(folder.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    folder.rmdir()


@pytest.mark.parametrize("refusal", REFUSALS)
def test_refused_by_name(tmp_path: Path, refusal: str) -> None:
    change, named, classes = REFUSALS[refusal]
    root = write_folders(tmp_path / "data")
    change(root)
    with pytest.raises(DataError) as caught:
        ImageFolder(root, classes).fetch(tmp_path / "home")
    assert named in str(caught.value)
    assert not (tmp_path / "home").exists()


def test_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(DataError, match="no class folders"):
        ImageFolder(tmp_path / "data").fetch(tmp_path / "home")
    with pytest.raises(SettingError, match=r"data\.path"):
        ImageFolder(None).fetch(tmp_path / "home")


@pytest.mark.parametrize("change", ["changed", "gone"])
def test_an_image_that_changes_after_listing_is_named(tmp_path: Path, change: str, rows_of) -> None:
    root = write_folders(tmp_path / "data")
    files = ImageFolder(root).fetch(tmp_path / "home")
    file = next((root / "train" / "dog").iterdir())
    file.write_bytes(file.read_bytes()[::-1]) if change == "changed" else file.unlink()
    with pytest.raises(DataError, match=change) as caught:
        rows_of(files, "train")
    assert str(file) in str(caught.value)
    assert len(rows_of(files, "test")) == 12


def test_a_lost_listing_says_what_to_do(tmp_path: Path, rows_of) -> None:
    files = ImageFolder(write_folders(tmp_path / "data")).fetch(tmp_path / "home")
    (Path(files.root) / "listing.arrow").unlink()
    with pytest.raises(DataError, match="again"):
        rows_of(files, "train", [0])


@pytest.mark.extended
def test_batches_are_bounded_and_in_order(tmp_path: Path) -> None:
    source = ImageFolder(write_folders(tmp_path / "data", splits=("",), count=1100))
    files = source.fetch(tmp_path / "home")
    rows = list(range(2199, -1, -1)) * 4
    batches = list(source.read(files, "", rows))
    assert [len(batch) for batch in batches] == [8192, 608]
    forward = [image for batch in source.read(files, "", range(2200)) for image in batch["image"].to_pylist()]
    assert [image for batch in batches for image in batch["image"].to_pylist()] == forward[::-1] * 4
    assert list(source.read(files, "", [])) == []


def test_a_shard_of_a_long_listing_is_read_without_the_others(tmp_path: Path) -> None:
    sizes = {"test": 1000, "train": 50_000}
    images = [
        ImageFile(split, "a class", f"{number:064x}", 7, f"/images/{split}/{number:0100}.png")
        for split, rows in sizes.items()
        for number in range(rows)
    ]
    folder._write_listing(tmp_path / "listing.arrow", images)
    files = SourceFiles(kind="folder", root=str(tmp_path), origin="-", digest="-", files=51_000, bytes=1)
    source, before = ImageFolder(), pa.total_allocated_bytes()
    assert {split: source.count(files, split) for split in source.splits(files)} == sizes
    listing = folder._listing(files, "train")
    chosen = listing.take(pa.array([49_999, 0]))["path"].to_pylist()
    assert chosen == [f"/images/train/{number:0100}.png" for number in (49_999, 0)]
    assert pa.total_allocated_bytes() - before < 100_000  # of 10 MB
