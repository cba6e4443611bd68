"""Sources of images keep the contract of a source; the digits are in `test_source_contract_tables.py`."""

import gzip
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import test_source_contract_tables
from pictures_with_numbers import TARGET, write_folder, write_parquet
from small_sources import (
    CIFAR_ROWS,
    IDX_ROWS,
    flip,
    publish_cifar,
    publish_idx,
    write_cifar,
    write_folders,
    write_idx,
)
from source_contract import Change, SourceContract
from web_site import Site

from training.data.sources import Source
from training.data.sources.cifar import Cifar10
from training.data.sources.folder_targets import ImageFolder
from training.data.sources.idx import FILES, IdxFiles
from training.data.sources.locate import open_path, reader, with_numbers
from training.data.sources.parquet import ParquetImages
from training.errors import DataError
from training.records import SourceFiles

IMAGES, LABELS = FILES["train", "images"], FILES["test", "labels"]
CIFAR_COUNTS = {split: sum(rows) for split, rows in CIFAR_ROWS.items()}


class TestIdx(SourceContract):
    kind, rows, needed = "idx", IDX_ROWS, (".", *FILES.values())

    def write(self, folder: Path) -> None:
        write_idx(folder)

    def source(self, folder: Path) -> Source:
        return IdxFiles("MNIST", path=folder)

    def changes(self) -> Sequence[Change]:
        return [lambda folder: flip(folder / IMAGES), lambda folder: flip(folder / LABELS, -2)]


class TestPackedIdx(TestIdx):
    needed = (".", *(f"{name}.gz" for name in FILES.values()))

    def write(self, folder: Path) -> None:
        write_idx(folder)
        for file in list(folder.iterdir()):
            (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
            file.unlink()

    def changes(self) -> Sequence[Change]:
        def change(folder: Path) -> None:
            file = folder / f"{IMAGES}.gz"
            content = gzip.decompress(file.read_bytes())
            file.write_bytes(gzip.compress(content[:-1] + bytes([content[-1] ^ 1])))

        return [change]


class TestDownloadedIdx(TestIdx):
    @pytest.fixture(autouse=True)
    def _site(self, site: Site) -> None:
        self.site = site

    def source(self, folder: Path) -> Source:
        return IdxFiles("MNIST", published=publish_idx(self.site, folder))

    def name_of(self, lost: Path) -> str:
        return self.site.url(f"/good/{lost.name}.gz" if lost.name in self.needed else "/good/")


class TestCifar10(SourceContract):
    kind, rows, needed = "cifar", CIFAR_COUNTS, (".", "data_batch_4.bin", "test_batch.bin")

    def write(self, folder: Path) -> None:
        write_cifar(folder)

    def source(self, folder: Path) -> Source:
        return Cifar10(folder)

    def changes(self) -> Sequence[Change]:
        return [
            lambda folder: flip(folder / "data_batch_5.bin"),  # a pixel
            lambda folder: flip(folder / "test_batch.bin", 0),  # a label
        ]


class TestDownloadedCifar10(TestCifar10):
    @pytest.fixture(autouse=True)
    def _site(self, site: Site) -> None:
        self.site = site

    def source(self, folder: Path) -> Source:
        return publish_cifar(self.site, folder)

    def name_of(self, lost: Path) -> str:
        return lost.name if lost.suffix else self.site.url("/cifar")


class TestImageFolder(SourceContract):
    kind, rows = "folder", {"train": 12, "test": 12}

    def write(self, folder: Path) -> None:
        write_folders(folder)

    def source(self, folder: Path) -> Source:
        return ImageFolder(folder)

    def changes(self) -> Sequence[Change]:
        def first(folder: Path) -> Path:
            return min((folder / "train" / "cat").iterdir())

        return [
            lambda folder: flip(first(folder)),
            lambda folder: first(folder).unlink(),
            lambda folder: shutil.copy(first(folder), folder / "train" / "cat" / "copy.jpg"),
            lambda folder: first(folder).rename(folder / "train" / "dog" / "moved.jpg"),
            lambda folder: first(folder).rename(folder / "test" / "cat" / "moved.jpg"),
        ]


class TestUndividedImageFolder(TestImageFolder):
    rows: ClassVar = {"": 12}

    def write(self, folder: Path) -> None:
        write_folders(folder, splits=("",))

    def changes(self) -> Sequence[Change]:
        return [lambda folder: flip(min((folder / "cat").iterdir()))]


class TestImageFolderWithNumbers(SourceContract):
    kind, rows, needed = "folder-targets", {"": 12}, (".", "metadata.csv", "1/0011.png")

    def write(self, folder: Path) -> None:
        write_folder(folder)

    def source(self, folder: Path) -> Source:
        return ImageFolder(folder, target=TARGET)

    def changes(self) -> Sequence[Change]:
        def number(folder: Path) -> None:
            lines = (folder / "metadata.csv").read_text().splitlines()
            (folder / "metadata.csv").write_text("\n".join([*lines[:-1], "1/0011.png,7,someone"]))

        return [number, lambda folder: flip(folder / "1" / "0011.png")]


class TestParquet(SourceContract):
    """Two files of each split: pixels and labels, in row groups of 5 rows."""

    kind, rows = "parquet", {"train": 24, "val": 12, "test": 12}

    def write(self, folder: Path) -> None:
        for number, name in enumerate(("train/a", "train/b", "val/c", "test/d")):
            write_table(folder / f"{name}.parquet", number)

    def source(self, folder: Path) -> Source:
        return ParquetImages(folder)

    def changes(self) -> Sequence[Change]:
        return [
            lambda folder: write_table(folder / "train" / "b.parquet", 1, brighter=1),
            lambda folder: write_table(folder / "train" / "b.parquet", 1, label="bird"),
            lambda folder: (folder / "train" / "b.parquet").rename(folder / "test" / "b.parquet"),
        ]


def write_table(file: Path, seed: int, brighter: int = 0, label: str = "dog") -> None:
    images = np.random.default_rng(seed).integers(0, 250, (12, 5, 4, 3)).astype(np.uint8)
    images[7] += brighter
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(images)
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"image": column, "label": ["cat", label] * 6}), file, row_group_size=5)


class TestParquetWithNumbers(SourceContract):
    kind, rows, needed = "parquet-targets", {"": 12}, (".", "scans.parquet")

    def write(self, folder: Path) -> None:
        write_parquet(folder / "scans.parquet")

    def source(self, folder: Path) -> Source:
        return with_numbers(ParquetImages(folder / "scans.parquet", label=TARGET))

    def changes(self) -> Sequence[Change]:
        def number(folder: Path) -> None:
            table = pq.read_table(folder / "scans.parquet")
            numbers = pa.array([7.0, *table[TARGET].to_pylist()[1:]])
            pq.write_table(table.set_column(1, TARGET, numbers), folder / "scans.parquet")

        return [number, lambda folder: write_parquet(folder / "scans.parquet", count=11)]


class TestArchive(TestImageFolder):
    """A source in an archive, which `data.path` names."""

    needed = ("images.tar",)

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.pack(folder)

    def source(self, folder: Path) -> Source:
        return open_path(folder / "images.tar", folder.with_name(f"{folder.name}-home"))

    def changes(self) -> Sequence[Change]:
        return [partial(self.pack, change=change) for change in super().changes()]

    def pack(self, folder: Path, change: Change | None = None) -> None:
        inside = write_folders(folder.with_name(f"{folder.name}-{'changed' if change else 'inside'}"))
        if change:
            change(inside)
        shutil.make_archive(str(folder / "images"), "tar", inside)


def test_every_kind_that_is_read_has_the_contract() -> None:
    unknown = SourceFiles(kind="unknown", root=".", origin=".", digest="", files=0, bytes=0)
    with pytest.raises(DataError) as caught:
        reader(unknown)
    kinds = str(caught.value).rpartition("one of ")[2].rstrip(".").split(", ")
    tested = {
        member.kind
        for module in (sys.modules[__name__], test_source_contract_tables)
        for member in vars(module).values()
        if isinstance(member, type) and hasattr(member, "kind")
    }
    assert set(kinds) == tested | {"text"}
