"""In: texts to predict, in CSV, TSV, Parquet or text files. Out: batches of token ids, in the order of paths and rows.

A text file is UTF-8 and has a text on each line. Texts become token ids by the model's own tokenizer. An empty
text does not stop the reading: its row contains the reason. Fails with DataError when there is nothing to read,
when a file lacks the column of text, and when a file is damaged. Rows are numbered from 1 in each file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.inference.inputs import Batch, Chunk, Unit, input_files, parquet_chunks, with_suffix
from training.data.sources.parquet_files import open_parquet
from training.data.sources.plain_files import check_plain
from training.data.tables.encoding import nearest
from training.data.tables.reading import CSV, PARQUET, TSV, blocks, column_types
from training.data.tables.values import as_text, kind_of
from training.data.text.class_files import decoded, lines_of
from training.data.text.tokenizers import Encoder
from training.errors import DataError

_TXT = (".txt",)
_BATCH_ROWS = 4096
_OF_ANOTHER_ENCODING = (
    "The files to predict are read as UTF-8, whatever encoding the recipe names. Convert the file, such as by: "
    "iconv -f LATIN1 -t UTF-8 FILE > CONVERTED"
)


@dataclass(frozen=True)
class Texts:
    """Reads the inputs of a model that takes token ids, as int64 (rows, tokens). `tokenizer` is JSON."""

    column: str
    tokenizer: str
    unit: Unit = "rows"
    ray_from_rows: int = 2_000_000
    rows_at_once: int = 512

    @cached_property
    def _encoder(self) -> Encoder:
        return Encoder(self.tokenizer)

    def __getstate__(self) -> dict[str, object]:
        """The fields alone: each process reads the tokenizer for itself."""
        return {name: value for name, value in vars(self).items() if name != "_encoder"}

    def find(self, path: Path) -> list[Chunk]:
        """Find all chunks to read at `path`, sorted by path; the order depends on names alone.

        Raises :class:`DataError` when there is nothing to read, when there are files of several formats, and when a
        file is unusable or lacks the column.
        """
        root, names = input_files(path, "Give a CSV, TSV, Parquet or text file, or a folder of them.")
        formats = {kind: with_suffix(names, kind) for kind in (CSV, TSV, PARQUET, _TXT)}
        files_by_kind = {kind: files for kind, files in formats.items() if files}
        if len(files_by_kind) != 1:
            kinds = ", ".join(suffix for kind in formats for suffix in kind)
            what = "holds files of several formats" if files_by_kind else "nothing to score"
            raise DataError(
                f"{path}: {what}. There must be files that end in one of {kinds}, all of one format."
            )
        ((kind, files),) = files_by_kind.items()
        for name in files:
            check_plain(root / name)
            self._check_column(root / name, kind)
        if kind == PARQUET:
            return [chunk for name in files for chunk in parquet_chunks(root, name)]
        return [Chunk(root=str(root), files=(name,), rows=self._count(root / name)) for name in files]

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        """Read a chunk as batches. An unusable row does not stop the reading: its `error` has the reason."""
        number = chunk.first_row + 1
        for texts in self._texts(chunk):
            for start in range(0, len(texts), _BATCH_ROWS):
                part = texts[start : start + _BATCH_ROWS]
                yield self._batch(part, chunk, number)
                number += len(part)

    def _check_column(self, file: Path, kind: tuple[str, ...]) -> None:
        if kind == _TXT:
            return
        types = column_types(file)
        names = list(types)
        if self.column not in names:
            raise DataError(
                f"{file}: no column {self.column!r}, which has the text that the model reads; "
                f"{nearest(self.column, names)}"
            )
        kind = types[self.column]
        if kind_of(kind) is None and not pa.types.is_null(kind):
            raise DataError(f"{file}: column {self.column!r} is of type {kind}. Write it as text.")

    def _count(self, file: Path) -> int:
        return sum(len(texts) for texts in self._of_file(file))

    def _texts(self, chunk: Chunk) -> Iterator[list[str | None]]:
        file = Path(chunk.root) / chunk.files[0]
        if chunk.row_group is None:
            yield from self._of_file(file)
            return
        with open_parquet(file, page_checksum_verification=True) as parquet:
            for rows in parquet.iter_batches(
                _BATCH_ROWS, row_groups=[chunk.row_group], columns=[self.column]
            ):
                yield as_text(rows[self.column]).to_pylist()

    def _of_file(self, file: Path) -> Iterator[list[str | None]]:
        """The texts of a CSV, TSV or text file, in order."""
        if file.suffix.lower() in _TXT:
            lines = enumerate(lines_of(file), 1)
            while part := list(islice(lines, _BATCH_ROWS)):
                yield [
                    decoded(line, "utf-8", f"{file} line {number}", _OF_ANOTHER_ENCODING)
                    for number, line in part
                ]
            return
        for block in blocks(file, [self.column]):
            texts: pa.Array = block.rows[self.column]
            yield texts.to_pylist()

    def _batch(self, texts: list[str | None], chunk: Chunk, first: int) -> Batch:
        name, file = chunk.files[0], Path(chunk.root) / chunk.files[0]
        numbers = range(first, first + len(texts))
        errors = [
            "" if text else f"{file} row {number}: the text is empty"
            for number, text in zip(numbers, texts, strict=True)
        ]
        return {
            "where": np.array([f"{name}:{number}" for number in numbers], object),
            "error": np.array(errors, object),
            "inputs": self._encoder.encode([text or "" for text in texts]).ids,
        }
