"""What callers rely on of every source. A test class inherits :class:`SourceContract` and writes the source's data."""

import json
import os
import pickle
import random
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from training.data.sources import RAW_SCHEMA, Source
from training.data.sources.locate import reader
from training.errors import DataError, SettingError
from training.records import SourceFiles

Row = dict[str, Any]
Change = Callable[[Path], object]

# stdin: the source; argv: a folder to fetch it to, and source files as JSON, whose rows are read.
_ELSEWHERE = """
import pickle, sys
from pathlib import Path
from training.data.sources.locate import reader
from training.records import SourceFiles
source, given = pickle.load(sys.stdin.buffer), SourceFiles.model_validate_json(sys.argv[2])
print(source.fetch(Path(sys.argv[1])).model_dump_json())
read = reader(given)
print(repr([
    row
    for split in read.splits(given)
    for batch in read.read(given, split, range(read.count(given, split)))
    for row in batch.to_pylist()
]))
"""


class SourceContract(ABC):
    """Tests of a source.

    `kind` is the kind of its source files, and `rows` has the number of rows of each split, in the order of the
    splits. `needed` are paths in the folder of the data; fetching fails if one of them is gone.
    """

    kind: ClassVar[str]
    rows: ClassVar[dict[str, int]]
    needed: ClassVar[tuple[str, ...]] = (".",)

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Write the data to `folder`, which does not exist: always the same content, and another in each row."""

    @abstractmethod
    def source(self, folder: Path) -> Source:
        """The source of the data in `folder`."""

    @abstractmethod
    def changes(self) -> Sequence[Change]:
        """Functions that change the data in a folder, each so that the rows are others."""

    def name_of(self, lost: Path) -> str:
        """What an error must say when a file or folder of the data is gone."""
        return str(lost)

    def environment(self, folder: Path) -> dict[str, str]:
        """Environment variables under which another process finds the data of `folder`."""
        del folder
        return {}

    def written(self, folder: Path, *changes: Change) -> Source:
        """The source of new data, changed by `changes`."""
        self.write(folder)
        for change in changes:
            change(folder)
        return self.source(folder)

    def test_fetching_again_gives_the_same_files(self, tmp_path: Path) -> None:
        source = self.written(tmp_path / "data")
        given = contents(tmp_path / "data")
        files = source.fetch(tmp_path / "home")
        assert files.kind == self.kind
        fetched = contents(tmp_path / "home")
        assert source.fetch(tmp_path / "home") == files
        assert contents(tmp_path / "home") == fetched
        assert contents(tmp_path / "data") == given

    def test_another_process_gives_the_same_digest_and_rows(self, tmp_path: Path) -> None:
        """Of another seed of hashes, too: an order that sets decide would differ."""
        source = self.written(tmp_path / "data")
        files = source.fetch(tmp_path / "home")
        done = subprocess.run(
            [sys.executable, "-c", _ELSEWHERE, str(tmp_path / "other-home"), files.model_dump_json()],
            input=pickle.dumps(source),
            env=os.environ | {"PYTHONHASHSEED": "1"} | self.environment(tmp_path / "data"),
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        theirs, rows = done.stdout.decode().splitlines()
        assert about(SourceFiles.model_validate_json(theirs)) == about(files)
        assert rows == repr(list(all_rows(files)))

    def test_splits_and_counts_are_those_of_the_rows(self, tmp_path: Path) -> None:
        source = self.written(tmp_path / "data")
        files = source.fetch(tmp_path / "home")
        for read in (source, reader(files)):
            assert list(read.splits(files)) == list(self.rows)
            assert {split: read.count(files, split) for split in self.rows} == self.rows
        for split, count in self.rows.items():
            rows = rows_of(files, split)
            assert len(rows) == count
            assert {row["split"] for row in rows} == {split}

    def test_rows_have_the_columns_that_preparation_reads(self, tmp_path: Path) -> None:
        files = self.written(tmp_path / "data").fetch(tmp_path / "home")
        split = next(iter(self.rows))
        for batch in reader(files).read(files, split, [0]):
            if files.kind in ("table", "text"):
                names = [name for name in batch.schema.names if name.startswith("feature.")]
                assert names
                assert {"label", "split", "where"} == set(batch.schema.names) - set(names)
            else:
                assert batch.schema == RAW_SCHEMA
        places = [row["where"] for row in all_rows(files)]
        assert len(set(places)) == len(places) == sum(self.rows.values())

    def test_rows_are_the_same_in_any_order_and_in_any_parts(self, tmp_path: Path) -> None:
        files = self.written(tmp_path / "data").fetch(tmp_path / "home")
        for split, count in self.rows.items():
            rows = rows_of(files, split)
            assert len({repr(row) for row in rows}) == count
            order = random.Random(count).sample(range(count), count)
            for wanted in (order, order[::-1], [count - 1, 0, 0, count - 1], list(range(1, count, 2)), []):
                assert rows_of(files, split, wanted) == [rows[number] for number in wanted]
            for length in (1, count // 2 + 1):
                parts = [order[start : start + length] for start in range(0, count, length)]
                joined = [row for part in parts for row in rows_of(files, split, part)]
                assert joined == [rows[number] for number in order]
            for outside in (-1, count):
                with pytest.raises(IndexError):
                    rows_of(files, split, [outside])

    def test_neither_place_nor_time_counts(self, tmp_path: Path) -> None:
        files = self.written(tmp_path / "data").fetch(tmp_path / "home")
        rows = list(all_rows(files))
        other = self.written(tmp_path / "elsewhere" / "data", make_old).fetch(tmp_path / "other-home")
        assert other.digest == files.digest
        assert list(map(content, all_rows(other))) == list(map(content, rows))

    def test_every_change_of_the_data_changes_the_digest(self, tmp_path: Path) -> None:
        digests, rows = [], []
        for number, changes in enumerate([(), *((change,) for change in self.changes())]):
            source = self.written(tmp_path / f"data-{number}", *changes)
            files = source.fetch(tmp_path / f"home-{number}")
            digests.append(files.digest)
            rows.append(repr(sorted(repr(content(row)) for row in all_rows(files))))
        assert len(rows) > 1
        assert len(set(rows)) == len(rows)
        assert len(set(digests)) == len(digests)

    def test_data_that_are_gone_are_named(self, tmp_path: Path) -> None:
        for number, name in enumerate(self.needed):
            folder = tmp_path / f"data-{number}"
            with pytest.raises((DataError, SettingError)) as caught:
                self.written(folder, partial(remove, name=name)).fetch(tmp_path / f"home-{number}")
            assert self.name_of(folder / name) in str(caught.value)

    def test_fetched_files_that_are_gone_are_named(self, tmp_path: Path) -> None:
        files = self.written(tmp_path / "data").fetch(tmp_path / "home")
        split = next(iter(self.rows))
        assert rows_of(files, split)
        remove(Path(files.root))
        for read in (lambda: reader(files).count(files, split), lambda: rows_of(files, split, [0])):
            with pytest.raises(DataError) as caught:
                read()
            assert files.root in str(caught.value)


def rows_of(files: SourceFiles, split: str, numbers: Sequence[int] | None = None) -> list[Row]:
    """Rows of a split as another process reads them, with the source files alone; all rows without `numbers`."""
    read = reader(SourceFiles.model_validate_json(files.model_dump_json()))
    wanted = range(read.count(files, split)) if numbers is None else numbers
    return [row for batch in read.read(files, split, wanted) for row in batch.to_pylist()]


def all_rows(files: SourceFiles) -> Iterator[Row]:
    for split in reader(files).splits(files):
        yield from rows_of(files, split)


def content(row: Row) -> Row:
    """A row without its place, which names a file."""
    return {name: value for name, value in row.items() if name != "where"}


def about(files: SourceFiles) -> dict[str, Any]:
    """Source files without the folder that they were fetched to."""
    fields: dict[str, Any] = json.loads(files.model_dump_json(exclude={"root", "tokenizer"}))
    return fields


def contents(folder: Path) -> dict[str, bytes]:
    """All files below `folder`."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def make_old(folder: Path) -> None:
    """Give all files below `folder` a time long ago."""
    for file in folder.rglob("*"):
        os.utime(file, (1e9, 1e9))


def remove(folder: Path, name: str = ".") -> None:
    """Remove a file or folder in `folder`, or `folder` itself."""
    path = folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
