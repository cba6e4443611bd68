"""The source of a table: a CSV or Parquet file, or a folder of such files, with a column that a model predicts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa

from training.code_closure import code_digests
from training.data.sources.parquet_index import find_files
from training.data.sources.places import given_path
from training.data.sources.plain_files import check_plain
from training.data.sources.unchanged import check_still, gone_named, known_file, warn_of_copies
from training.data.tables.ingest import Options, check_divided, ingest
from training.data.tables.reading import CSV, PARQUET, is_csv
from training.data.tables.typed_copy import find_copy, forget_old_copies, read_copy, read_notes, splits_of
from training.data.tables.values import TYPES
from training.errors import DataError, SettingError
from training.records import ColumnKind, SourceFiles
from training.storage.files import digest_json


@dataclass(frozen=True)
class Table:
    """A CSV or Parquet file, or a folder of such files, flat or in `train/` and `test/` (and optionally `val/`).

    `path` is relative to the recipe file's folder. `target` names the column to predict. Every other column is a
    feature, except those in `drop` and those of `key`, `split`, `group`, `time` and `weight`.

    `key` names the column, or the list of columns, that identifies a row, such as a customer's number. A row is found
    again by its key when its other columns change, so it stays in its split; no two rows may have the same key, and
    no value of a key may be missing. Values are compared as text: 7 and 7.0 are equal, 7 and 007 are not. Without
    `key`, a row is known by its content, and a job that rewrites a column makes all rows new ones.

    `types` declares the kinds of columns: "number", "category", "boolean" or "date". The kind of any other column is
    recognised from all of its values: numbers (integers, too), `true` and `false`, dates and times as ISO 8601 writes
    them, and else categories; Parquet columns have the kind of their type. A column of text with too many distinct
    values is refused. In a CSV file, the texts NA, N/A, n/a, NaN, nan, null and NULL and the empty text stand for a
    missing value, and spaces around a value are removed. A boolean column that is declared may also have yes/no, y/n,
    t/f and 1/0.

    By default, a row's key or content decides whether it is a test row (`data.test_share` of the rows are); rows of
    equal content are then in one split, unless they have keys. `split` names a column with `train`, `val` or `test` for
    each row. `group` names a column whose values decide instead of key or content: all rows with one value are in one
    split. `time` names a column of dates or numbers: the latest `test_share` of the rows are the test split; rows with
    equal times stay together. Beside `time`, `split` or folders for the splits, `group` keeps only the validation rows
    of one value together.

    `weight` names a column of finite numbers of at least 0, not an input: how much a row counts in the training's loss,
    in the scores and in the gate's comparison. Only the proportions of weights matter.

    Rows are numbered from 1 in each file; the header of a CSV file and empty lines are not counted.

    Raises :class:`SettingError` for options that contradict each other.
    """

    path: str | Path
    target: str
    drop: Sequence[str] = ()
    types: Mapping[str, ColumnKind] = field(default_factory=dict)
    split: str | None = None
    group: str | None = None
    time: str | None = None
    test_share: float = 0.2
    key: str | Sequence[str] = ()
    weight: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.drop, str) or self.drop is None:
            columns = [] if self.drop is None else [self.drop]
            raise SettingError(f"Table(drop={self.drop!r}): give a list of columns, as drop={columns}")
        if not isinstance(self.types, Mapping):
            raise SettingError(
                f'Table(types={self.types!r}): give a kind for each name, as types={{"zip": "category"}}'
            )
        object.__setattr__(self, "key", (self.key,) if isinstance(self.key, str) else tuple(self.key))
        object.__setattr__(self, "drop", tuple(self.drop))
        object.__setattr__(self, "types", dict(self.types))
        self._check_kinds()
        self._check_roles()
        if not 0 < self.test_share < 1:
            raise SettingError(f"Table(test_share={self.test_share}): give a share between 0 and 1")

    def _check_kinds(self) -> None:
        for name, kind in self.types.items():
            if not isinstance(kind, str) or kind not in TYPES:
                raise SettingError(
                    f"Table(types={{{name!r}: {kind!r}}}): no such type; take one of {', '.join(TYPES)}"
                )

    def _check_roles(self) -> None:
        if self.split is not None and self.time is not None:
            raise SettingError("Table: split= and time= both divide the rows; give one of them")
        uses = (self.target, self.split, self.group, self.time, self.weight)
        roles = [name for name in uses if name is not None]
        for name in roles:
            if roles.count(name) > 1:
                raise SettingError(
                    f"Table: column {name!r} has two uses among target, split, group, time and weight"
                )
        for name in (*roles, *self.key):
            if name in self.drop:
                raise SettingError(f"Table(drop=...): column {name!r} is in use; take it out of drop")
        self._check_key()

    def _check_key(self) -> None:
        for name in self.key:
            if name in (self.target, self.split):
                use = "target" if name == self.target else "split"
                raise SettingError(f"Table(key=...): column {name!r} is the {use}; take it out of key")
        if len(set(self.key)) < len(self.key) or tuple(self.key) in ((self.group,), (self.time,)):
            raise SettingError(
                f"Table(key={list(self.key)}): a key is columns that are distinct for each row; several rows share a "
                "group or a time, so name a further column beside it"
            )

    def fetch(self, folder: Path) -> SourceFiles:
        """Read and check all rows; their typed copy is written to `folder`, or used again if it is there."""
        root = given_path(self.path, "a table")
        with gone_named():
            found = self._find(root)
            known = {file: known_file(file) for _, file in found}
        files = sorted((split, known[file].digest, known[file].size, file) for split, file in found)
        warn_of_copies(files)
        # Sorted by content, so that file names don't matter; the order of two equal files makes no difference.
        options = Options(**{name: value for name, value in vars(self).items() if name != "path"})
        digest = digest_json({"options": self._chosen(), "files": [list(entry[:3]) for entry in files]})
        about = [digest, [str(file) for *_, file in files], code_digests(__name__)]
        copy_folder = folder / "tables" / digest_json(about)[:16]
        notes = find_copy(copy_folder)
        if notes is None:
            sorted_files = [(split, file) for split, *_, file in files]
            ingest(sorted_files, options, copy_folder, partial(check_still, known))
            notes = read_notes(copy_folder)
        check_divided(str(root), notes.rows)
        forget_old_copies(copy_folder)
        return SourceFiles(
            kind="table",
            root=str(copy_folder),
            origin=str(root),
            digest=digest,
            files=len(files),
            bytes=sum(size for _, _, size, _ in files),
        )

    def _chosen(self) -> dict[str, object]:
        """The options that decide about the content of the rows, as JSON."""
        chosen = {name: value for name, value in vars(self).items() if name not in ("path", "test_share")}
        chosen["key"], chosen["drop"] = list(self.key), sorted(self.drop)
        if self.weight is None:
            del chosen["weight"]
        return chosen | ({"test_share": self.test_share} if self.time is not None else {})

    def _find(self, root: Path) -> list[tuple[str, Path]]:
        suffixes = (*CSV, *PARQUET)
        if root.is_file() and root.suffix.lower() not in suffixes:
            raise DataError(
                f"{root}: neither CSV nor Parquet by its name; it must end in {' or '.join(suffixes)}."
            )
        check_plain(root) if not root.is_dir() else None
        files = find_files(root, suffixes, "CSV or Parquet")
        if len({is_csv(file) for _, file in files}) > 1:
            raise DataError(f"{root}: holds both CSV and Parquet files. Keep files of one format.")
        if any(split for split, _ in files) and (self.split or self.time):
            option = "split" if self.split else "time"
            raise DataError(
                f"{root}: has files for train and test, and {option}= divides the rows, too. Keep one."
            )
        return files

    def count(self, files: SourceFiles, split: str) -> int:
        """Number of rows of `split`."""
        return read_notes(Path(files.root)).rows.get(split, 0)

    def splits(self, files: SourceFiles) -> Sequence[str]:
        """("train", "test") with or without "val", or ("",) when neither folders nor options divide the rows."""
        return splits_of(read_notes(Path(files.root)))

    def read(self, files: SourceFiles, split: str, rows: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Raw rows: columns `feature.<name>`, `label` (null if missing), `split`, `where`, maybe `group` and `key`."""
        return read_copy(Path(files.root), split, rows)
