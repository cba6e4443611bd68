"""The kind of data at a path is recognised from the files, also inside an archive."""

import logging
import shutil
import struct
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_sources import flip

from training.data.sources.cifar import Cifar10
from training.data.sources.digits import Digits
from training.data.sources.idx import IdxFiles
from training.data.sources.locate import open_path, reader
from training.data.sources.parquet import ParquetImages
from training.errors import DataError, SettingError
from training.records import SourceFiles


def idx(root: Path) -> None:
    root.mkdir(parents=True)
    for name, count in (("train", 4), ("t10k", 2)):
        (root / f"{name}-images-idx3-ubyte").write_bytes(
            struct.pack(">4BIII", 0, 0, 8, 3, count, 2, 2) + bytes(4 * count)
        )
        (root / f"{name}-labels-idx1-ubyte").write_bytes(
            struct.pack(">4BI", 0, 0, 8, 1, count) + bytes(count)
        )


def idx_raw(root: Path) -> None:
    idx(root / "MNIST" / "raw")


def cifar(root: Path) -> None:
    root.mkdir(parents=True)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        (root / f"{name}.bin").write_bytes(bytes(3073 * 2))


def images(root: Path) -> None:
    for label in ("a", "b"):
        (root / label).mkdir(parents=True)
        (root / label / "1.jpg").write_bytes(label.encode())


def divided(root: Path) -> None:
    images(root / "train")
    images(root / "test")


def parquet(root: Path) -> None:
    root.mkdir(parents=True)
    pq.write_table(pa.table({"image": [b"1", b"2"], "label": ["a", "b"]}), root / "rows.parquet")


def parquet_divided(root: Path) -> None:
    parquet(root / "train")
    parquet(root / "test")


KINDS = {
    idx: ("idx", {"train": 4, "test": 2}),
    idx_raw: ("idx", {"train": 4, "test": 2}),
    cifar: ("cifar", {"train": 10, "test": 2}),
    images: ("folder", {"": 2}),
    divided: ("folder", {"train": 2, "test": 2}),
    parquet: ("parquet", {"": 2}),
    parquet_divided: ("parquet", {"train": 2, "test": 2}),
}


def pack(folder: Path, archive: Path, top: str) -> Path:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as packed:
            for file in folder.rglob("*"):
                if file.is_file():
                    packed.write(file, Path(top) / file.relative_to(folder))
    else:
        with tarfile.open(archive, f"w:{archive.suffix[1:]}" if archive.suffix != ".tar" else "w") as tar:
            tar.add(folder, top or ".")
    return archive


def opened(path: Path, home: Path) -> tuple[SourceFiles, dict[str, int]]:
    files = open_path(path, home).fetch(home)
    source = reader(SourceFiles.model_validate_json(files.model_dump_json()))
    rows = {
        split: sum(map(len, source.read(files, split, range(source.count(files, split)))))
        for split in source.splits(files)
    }
    return files, rows


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_recognised_in_place_and_packed(tmp_path: Path, make, caplog) -> None:
    kind, counts = KINDS[make]
    make(tmp_path / "data")
    with caplog.at_level(logging.INFO, "evergreen.sources"):
        files, rows = opened(tmp_path / "data", tmp_path / "home")
    assert (files.kind, rows) == (kind, counts)
    assert sum(": recognised as " in message for message in caplog.messages) == 1
    for name, top in (
        ("flat.tar", ""),
        ("top.tar.gz", "data"),
        ("deep.tar.xz", "some/data"),
        ("top.zip", "data"),
    ):
        packed, rows = opened(pack(tmp_path / "data", tmp_path / name, top), tmp_path / "home")
        assert (packed.kind, packed.digest, rows) == (kind, files.digest, counts)
    moved, _ = opened(
        shutil.copytree(tmp_path / "data", tmp_path / "away" / "inner").parent, tmp_path / "home"
    )
    assert (moved.kind, moved.digest) == (kind, files.digest)


def test_an_archive_is_unpacked_once_for_its_content(tmp_path: Path) -> None:
    images(tmp_path / "data")
    archive = pack(tmp_path / "data", tmp_path / "data.zip", "")
    home = tmp_path / "home"
    first, _ = opened(archive, home)
    (unpacked,) = (home / "unpacked").glob("*/")
    made = unpacked.stat().st_ctime_ns
    renamed = archive.rename(tmp_path / "renamed.zip")
    assert opened(renamed, home)[0] == first.model_copy(update={"origin": str(renamed)})
    assert [(folder, folder.stat().st_ctime_ns) for folder in (home / "unpacked").glob("*/")] == [
        (unpacked, made)
    ]


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_an_archive_is_what_its_data_come_from(tmp_path: Path, make) -> None:
    make(tmp_path / "data")
    archive = pack(tmp_path / "data", tmp_path / "data.tar.gz", "top")
    for _ in range(2):
        assert opened(archive, tmp_path / "home")[0].origin == str(archive)
    assert opened(tmp_path / "data", tmp_path / "home")[0].origin == str(tmp_path / "data")


@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda file: file.write_bytes(b"")])
@pytest.mark.parametrize("make", [idx, cifar, divided, parquet_divided], ids=lambda make: make.__name__)
def test_what_was_unpacked_and_changed_is_unpacked_again(tmp_path: Path, make, damage, caplog) -> None:
    make(tmp_path / "data")
    archive = pack(tmp_path / "data", tmp_path / "data.tar", "")
    first, rows = opened(archive, tmp_path / "home")
    files = sorted(file for file in (tmp_path / "home" / "unpacked").glob("*/**/*") if file.is_file())
    for file in (files[0], files[-1]):
        damage(file)
        caplog.clear()
        assert opened(archive, tmp_path / "home") == (first, rows)
        assert f"{archive}: what was unpacked" in caplog.text


def test_a_note_that_is_damaged_is_written_again(tmp_path: Path) -> None:
    images(tmp_path / "data")
    archive = pack(tmp_path / "data", tmp_path / "data.tar", "")
    first = opened(archive, tmp_path / "home")
    (note,) = (tmp_path / "home" / "unpacked").glob("*.json")
    whole = note.read_bytes()
    for damaged in (b"", b"[1]", b"\xff", whole[:-5]):
        note.write_bytes(damaged)
        assert opened(archive, tmp_path / "home") == first
        assert note.read_bytes() == whole


def test_unsound_data_in_an_archive_are_refused_each_time(tmp_path: Path) -> None:
    images(tmp_path / "data")
    (tmp_path / "data" / "a" / "notes.txt").write_text("x")
    archive = pack(tmp_path / "data", tmp_path / "data.tar", "")
    for _ in range(2):
        with pytest.raises(DataError, match=r"notes\.txt: not an image file"):
            opened(archive, tmp_path / "home")


@pytest.mark.parametrize("suffix", ["", ".tar", ".zip"])
def test_the_recipes_own_columns_stay(tmp_path: Path, suffix: str) -> None:
    own = ParquetImages(tmp_path / "elsewhere", image="scan", label="finding", classes=("b", "a"))
    (tmp_path / "data").mkdir()
    pq.write_table(
        pa.table({"scan": [b"1", b"2"], "finding": ["a", "b"]}), tmp_path / "data" / "rows.parquet"
    )
    path = pack(tmp_path / "data", tmp_path / f"packed{suffix}", "") if suffix else tmp_path / "data"
    with pytest.raises(DataError, match="no column 'image'"):
        open_path(path, tmp_path / "home").fetch(tmp_path / "home")
    files = open_path(path, tmp_path / "home", own.classes, own).fetch(tmp_path / "home")
    assert (files.classes, files.origin) == (("b", "a"), str(path))
    (batch,) = reader(files).read(files, "", [0, 1])
    assert batch["label"].to_pylist() == ["a", "b"]


def test_options_of_another_kind_of_source_do_not_matter(tmp_path: Path) -> None:
    images(tmp_path / "data")
    own = ParquetImages(image="scan", classes=("b", "a"))
    files = open_path(tmp_path / "data", tmp_path / "home", own.classes, own).fetch(tmp_path / "home")
    assert (files.kind, files.classes) == ("folder", ("b", "a"))


def test_the_name_of_a_recipes_own_data_set_stays(tmp_path: Path) -> None:
    idx(tmp_path / "data")
    own = IdxFiles("FashionMNIST", ("a", "b"))
    assert open_path(tmp_path / "data", tmp_path / "home", own.classes, own) == replace(
        own, path=tmp_path / "data"
    )


def test_a_single_parquet_file(tmp_path: Path) -> None:
    parquet(tmp_path / "data")
    files, rows = opened(tmp_path / "data" / "rows.parquet", tmp_path / "home")
    assert (files.kind, rows) == ("parquet", {"": 2})


def test_declared_classes_are_passed_on(tmp_path: Path) -> None:
    for make in (idx, images, parquet):
        make(tmp_path / make.__name__)
        source = open_path(tmp_path / make.__name__, tmp_path / "home", ("b", "a"))
        assert source.fetch(tmp_path / "home").classes == ("b", "a")


def test_nothing_recognised_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "notes.txt").write_text("x")
    for path in (tmp_path / "data", tmp_path / "data" / "notes.txt"):
        with pytest.raises(
            DataError, match=r"train-images-idx3-ubyte.*data_batch_1\.bin.*parquet.*<class>.*\.tar\.gz"
        ):
            open_path(path, tmp_path / "home")


def test_missing_path_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"data\.path: .*nowhere"):
        open_path(tmp_path / "nowhere", tmp_path / "home")


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"\x80\x04.")
    with pytest.raises(DataError, match="pickles"):
        open_path(tmp_path, tmp_path / "home")


def test_reader_knows_all_kinds_and_no_others(tmp_path: Path) -> None:
    files = Digits().fetch(tmp_path)
    assert reader(files).count(files, "") == 1797
    with pytest.raises(DataError, match="'csv'"):
        reader(files.model_copy(update={"kind": "csv"}))


@pytest.mark.extended
def test_real_images_in_an_archive(real_data: Path, tmp_path: Path) -> None:
    """Uses only a part of the archive, because unpacking all 60,000 files takes a while."""
    part = tmp_path / "part.tar"
    with tarfile.open(real_data / "cifar10-jpeg.tar.xz") as whole, tarfile.open(part, "w") as tar:
        for member in whole:
            if member.isfile() and member.name.endswith(("01.jpg", "02.jpg")):
                tar.addfile(member, whole.extractfile(member))
    files, rows = opened(part, tmp_path / "home")
    assert rows == {"train": 1000, "test": 200}
    assert (len(files.classes), files.files) == (10, 1200)
    first = next(reader(files).read(files, "train", [0])).to_pylist()[0]
    assert first["image"].startswith(b"\xff\xd8\xff")


def test_of_several_data_sets_the_kind_of_the_recipe_is_read(tmp_path: Path) -> None:
    for name in ("FashionMNIST", "MNIST"):
        idx(tmp_path / "data" / name / "raw")
    cifar(tmp_path / "data" / "cifar-10-batches-bin")
    source = open_path(tmp_path / "data", tmp_path / "home", own=Cifar10())
    assert isinstance(source, Cifar10)
    source = open_path(tmp_path / "data", tmp_path / "home", own=IdxFiles("MNIST"))
    assert isinstance(source, IdxFiles)
    assert Path(source.fetch(tmp_path / "home").root) == tmp_path / "data" / "MNIST" / "raw"
    with pytest.raises(DataError, match="several data sets"):
        open_path(tmp_path / "data", tmp_path / "home")
