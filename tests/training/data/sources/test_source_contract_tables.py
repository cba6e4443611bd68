"""Tables, and what is installed with scikit-learn, keep the contract of a source."""

import gzip
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sklearn
from source_contract import Change, SourceContract

from training.data.sources import Source
from training.data.sources.digits import Digits
from training.data.sources.sklearn_tables import BundledTable
from training.data.sources.table import Table

INSTALLED = "sklearn/datasets/data"


class TestTable(SourceContract):
    kind, rows, needed = "table", {"": 9}, (".", "houses.csv")

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        rows = [
            f"{area},{'Köln' if area % 2 else 'Bonn'},2024-01-{area:02},{area * 1000}"
            for area in range(1, 10)
        ]
        (folder / "houses.csv").write_text("\n".join(["area,city,sold,price", *rows]) + "\n")

    def source(self, folder: Path) -> Source:
        return Table(folder / "houses.csv", target="price")

    def changes(self) -> Sequence[Change]:
        return [
            in_table("3,Köln", "3.5,Köln"),
            in_table("3000", "3001"),
            in_table("9,Köln,2024-01-09,9000\n", ""),
        ]


def in_table(old: str, new: str) -> Change:
    """A change of the text of the table."""

    def change(folder: Path) -> None:
        text = (folder / "houses.csv").read_text()
        assert old in text
        (folder / "houses.csv").write_text(text.replace(old, new))

    return change


class TestTableInFolders(SourceContract):
    kind, rows = "table", {"train": 6, "test": 3}

    def write(self, folder: Path) -> None:
        for name, first in (("train/one", 0), ("train/two", 3), ("test/three", 6)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            values = [first, first + 1, first + 2]
            pq.write_table(pa.table({"a": values, "price": values}), folder / f"{name}.parquet")

    def source(self, folder: Path) -> Source:
        return Table(folder, target="price")

    def changes(self) -> Sequence[Change]:
        return [
            lambda folder: (folder / "train" / "two.parquet").unlink(),
            lambda folder: (folder / "train" / "two.parquet").rename(folder / "test" / "two.parquet"),
        ]


class Installed(SourceContract):
    """A source of files of scikit-learn: here of the first lines of the real files, in another folder."""

    files: tuple[str, ...]

    @pytest.fixture(autouse=True)
    def _patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def write(self, folder: Path) -> None:
        (folder / INSTALLED).mkdir(parents=True)
        (folder / "sklearn" / "__init__.py").touch()
        for name in self.files:
            packed = (Path(sklearn.__file__).parent / "datasets" / "data" / name).read_bytes()
            lines = gzip.decompress(packed).splitlines(keepends=True)
            (folder / INSTALLED / name).write_bytes(gzip.compress(b"".join(lines[:40]), mtime=0))

    def find(self, folder: Path) -> None:
        """Let this process find the files in `folder`."""
        self.monkeypatch.delitem(sys.modules, "sklearn", raising=False)
        self.monkeypatch.syspath_prepend(folder)

    def environment(self, folder: Path) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}

    def name_of(self, lost: Path) -> str:
        return lost.name


def replace_in(name: str, old: bytes, new: bytes) -> Change:
    """A change of the first `old` in a packed file of scikit-learn."""

    def change(folder: Path) -> None:
        file = folder / INSTALLED / name
        text = gzip.decompress(file.read_bytes())
        assert old in text
        file.write_bytes(gzip.compress(text.replace(old, new, 1)))

    return change


class TestDigits(Installed):
    kind, rows = "digits", {"": 40}
    files = ("digits.csv.gz",)
    needed = (f"{INSTALLED}/digits.csv.gz",)

    def source(self, folder: Path) -> Source:
        self.find(folder)
        return Digits()

    def changes(self) -> Sequence[Change]:
        return [replace_in("digits.csv.gz", b"13", b"14")]


class TestBundledTable(Installed):
    kind, rows = "table", {"": 40}
    files = ("diabetes_data_raw.csv.gz", "diabetes_target.csv.gz")
    needed = tuple(f"{INSTALLED}/{name}" for name in files)

    def source(self, folder: Path) -> Source:
        self.find(folder)
        return BundledTable("diabetes")

    def changes(self) -> Sequence[Change]:
        return [replace_in(name, b"1", b"2") for name in self.files]
