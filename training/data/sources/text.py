"""The source of text, with a class or a number to predict for each or without, and its model's tokenizer."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from training.code_closure import code_digests
from training.data.sources.parquet_index import files_with, find_files
from training.data.sources.places import given_path
from training.data.sources.plain_files import check_plain
from training.data.sources.unchanged import check_still, gone_named, known_file
from training.data.tables.encoding import nearest
from training.data.tables.ingest import Options, check_divided, ingest
from training.data.tables.reading import CSV, PARQUET, TSV, column_types
from training.data.tables.typed_copy import (
    Notes,
    find_copy,
    forget_old_copies,
    read_copy,
    read_notes,
    splits_of,
    write_copy,
)
from training.data.text.class_files import TXT, ClassFile, class_batches, find_class_files
from training.data.text.plain_texts import NO_TARGET, column_batches, find_text_files
from training.data.text.tokenizers import check_installed, digest_of
from training.data.text.tokenizers_found import find_tokenizer
from training.errors import DataError, SettingError
from training.records import SourceFiles
from training.storage.files import atomic_file, digest_json
from training.storage.given_paths import expanded

_TABLES = (*CSV, *TSV, *PARQUET)


@dataclass(frozen=True)
class Text:
    """Texts, each with a class or a number to predict, for a model that takes token ids.

    `path`, relative to the recipe file's folder, is one of these. With folders `train/` and `test/` (and optionally
    `val/`) in it, they are the splits; otherwise a text's content decides whether its row is a test row.

    - a CSV, TSV or Parquet file, or a folder of such files, with the columns `text` and `target`. Further columns are
      not read. A TSV file has no quotes: each line is a row. A CSV file can't hold the text NA, null or the like, as
      they stand for a missing value (:class:`Table`);
    - a folder with a file `NAME.CLASS` for each class (or `CLASS.txt`), with a text on each line;
    - a folder with a folder for each class, with a text in each file.

    With `target=None`, and always with `problem=LanguageModel()`, only the texts are read: the column `text` of such
    tables, or each line of a `.txt` file, or of all files of a folder.

    `tokenizer` is a `tokenizer.json`, or a folder that has one, relative to the recipe file's folder; or a name on
    Hugging Face's hub. Without it, a tokenizer is trained on the train split. `data.max_tokens` and `data.vocabulary`
    set the tokens of a row and of a trained tokenizer. `encoding` is that of files of a class; CSV and TSV are UTF-8.

    Raises :class:`SettingError` for an unknown encoding, and for one column with two uses.
    """

    LIBRARIES: ClassVar[tuple[str, ...]] = ("tokenizers",)  # optional libraries that preparation needs

    path: str | Path | None = None
    text: str = "text"
    target: str | None = "label"
    tokenizer: str | Path | None = None
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        if self.text == self.target:
            raise SettingError(f"Text: column {self.text!r} can't be both the text and the target")
        try:
            "".encode(self.encoding)  # not codecs.lookup, which also finds hex and rot13
        except LookupError:
            raise SettingError(
                f"Text(encoding={self.encoding!r}): no such encoding; take one such as latin-1"
            ) from None

    def beside(self, folder: Path) -> "Text":
        """The same texts, with `path` and `tokenizer` relative to `folder` if they are relative paths."""
        path = self.path if self.path is None else folder / expanded(self.path, "Text(path=...)")
        tokenizer = self.tokenizer
        if tokenizer is not None and (near := folder / expanded(tokenizer, "Text(tokenizer=...)")).exists():
            tokenizer = near
        return replace(self, path=path, tokenizer=tokenizer)

    def fetch(self, folder: Path) -> SourceFiles:
        """Read and check all rows; their typed copy is written to `folder`, or used again if it is there."""
        check_installed()
        root = given_path(self.path, "text")
        tokenizer = None if self.tokenizer is None else find_tokenizer(self.tokenizer)
        with gone_named():
            tables = self._tables(root)
            find = find_text_files if self.target is None else find_class_files
            classes = [] if tables else find(root)
            read = [class_file.path for class_file in classes] or [file for _, file in tables]
            states = {file: known_file(file) for file in read}
        known = {file: (state.digest, state.size) for file, state in states.items()}
        # Sorted by content, so that file names don't matter.
        classes.sort(
            key=lambda class_file: (class_file.split, class_file.label or "", known[class_file.path])
        )
        tables.sort(key=lambda table: (table[0], known[table[1]]))
        about = [(split, "", *known[file]) for split, file in tables]
        about += [
            (class_file.split, class_file.label or "", *known[class_file.path]) for class_file in classes
        ]
        options = {"text": self.text, "target": self.target, "encoding": self.encoding}
        digest = digest_json({"options": options, "files": sorted(map(list, about))})
        copy_folder = (
            folder
            / "texts"
            / digest_json([digest, [str(file) for file in read], code_digests(__name__)])[:16]
        )
        notes = find_copy(copy_folder)
        if notes is None:
            self._write(tables, classes, copy_folder, partial(check_still, states))
            notes = read_notes(copy_folder)
        check_divided(str(root), notes.rows)
        forget_old_copies(copy_folder)
        return SourceFiles(
            kind="text",
            root=str(copy_folder),
            origin=str(root),
            digest=digest if tokenizer is None else digest_json([digest, digest_of(tokenizer)]),
            files=len(read),
            bytes=sum(size for _, size in known.values()),
            tokenizer="" if tokenizer is None else str(_keep(tokenizer, folder)),
        )

    def _tables(self, root: Path) -> list[tuple[str, Path]]:
        """The CSV, TSV or Parquet files, each with its split or ""; empty for a folder without such files."""
        if root.is_file():
            if self.target is None and root.suffix.lower() == TXT:
                return []
            if root.suffix.lower() not in _TABLES:
                raise DataError(
                    f"{root}: neither CSV, TSV nor Parquet by its name; it must end in {' or '.join(_TABLES)}. For a "
                    "file for each class, give the folder of the files."
                )
            check_plain(root)
        elif not any(files_with(at, _TABLES) for at in (root, root / "train", root / "test")):
            return []
        files = find_files(root, _TABLES, "CSV, TSV or Parquet")
        kinds = {file.suffix.lower() for _, file in files}
        if len(kinds) > 1:
            raise DataError(
                f"{root}: holds files of {' and '.join(sorted(kinds))}. Keep files of one format."
            )
        return files

    def _write(
        self,
        tables: list[tuple[str, Path]],
        classes: list[ClassFile],
        copy_folder: Path,
        check: Callable[[], None],
    ) -> None:
        if self.target is None:
            self._write_texts(tables, classes, copy_folder, check)
            return
        if tables:
            names: dict[str, None] = {}
            for _, file in tables:
                self._check_column(file, self.text, "text")
                names |= dict.fromkeys(self._check_column(file, self.target, "target"))
            drop = tuple(name for name in names if name not in (self.text, self.target))
            ingest(tables, Options(self.target, drop, {self.text: "category"}), copy_folder, check)
            return
        notes = Notes(
            files=tuple(str(class_file.path) for class_file in classes),
            target=self.target,
            label="category",
            columns={self.text: "category"},
            rows={},
            sha256={},
        )
        write_copy(copy_folder, notes, class_batches(classes, self.encoding, self.text), check)

    def _write_texts(
        self,
        tables: list[tuple[str, Path]],
        files: list[ClassFile],
        copy_folder: Path,
        check: Callable[[], None],
    ) -> None:
        """Write the typed copy of texts without a target."""
        for _, file in tables:
            self._check_column(file, self.text, "text")
        notes = Notes(
            files=tuple(map(str, [file for _, file in tables] or [class_file.path for class_file in files])),
            target=NO_TARGET,
            label="number",
            columns={self.text: "category"},
            rows={},
            sha256={},
        )
        batches = (
            column_batches(tables, self.text) if tables else class_batches(files, self.encoding, self.text)
        )
        write_copy(copy_folder, notes, batches, check)

    def _check_column(self, file: Path, name: str, option: str) -> list[str]:
        """The columns of a table. Raises :class:`DataError` if `name`, given as `option`, is not among them."""
        columns = list(column_types(file))
        if name not in columns:
            raise DataError(
                f"{file}: no column {name!r}; {nearest(name, columns)} Name the right one in Text({option}=...)."
            )
        return columns

    def count(self, files: SourceFiles, split: str) -> int:
        """Number of rows of `split`."""
        return read_notes(Path(files.root)).rows.get(split, 0)

    def splits(self, files: SourceFiles) -> Sequence[str]:
        """("train", "test") with or without "val", or ("",) when no folders divide the rows."""
        return splits_of(read_notes(Path(files.root)))

    def read(self, files: SourceFiles, split: str, rows: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Raw rows: columns `feature.<text>`, `label` (both null if missing), `split` and `where`."""
        return read_copy(Path(files.root), split, rows)


def _keep(tokenizer: str, folder: Path) -> Path:
    """Copy a tokenizer's JSON into `folder`, under the name of its digest, so that preparation reads these bytes."""
    file = folder / "tokenizers" / f"{digest_of(tokenizer)}.json"
    if not file.is_file() or digest_of(file.read_text(encoding="utf-8")) != file.stem:
        with atomic_file(file) as aside:
            aside.write_text(tokenizer, encoding="utf-8")
    return file
