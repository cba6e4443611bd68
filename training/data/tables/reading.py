"""Read CSV, TSV and Parquet files as blocks of rows; every error names the file, and the row if a row is invalid.

Row 1 of a file is its first row of data: the header of a CSV file and empty lines are not counted. Values of a CSV file
are strings, without surrounding spaces, and null for the texts in :data:`training.data.tables.values.MISSING`. A TSV
file is read as a CSV file is, but tabs separate the values, each line is a row, and quotes are part of a value.
"""

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from training.data.sources.parquet_files import open_parquet
from training.data.sources.unchanged import gone_named
from training.data.tables.quotes import check_closed, quotes_remedy
from training.data.tables.values import MISSING, plain
from training.errors import DataError

CSV, TSV, PARQUET = (".csv",), (".tsv",), (".parquet", ".pq")
_BLOCK_BYTES = 16 << 20  # of CSV text; a row must fit
_BLOCK_ROWS = 65_536
_PARQUET_BYTES = 256 << 20  # of a block of Parquet rows, about
_HEAD = 1 << 16
_COMMA = "a value that holds a comma needs quotes around it"


class Block(NamedTuple):
    """Consecutive rows of a file, with the requested columns; `first` is the number of the first row."""

    rows: pa.RecordBatch
    first: int


def is_csv(file: Path) -> bool:
    """Whether a file is read as CSV or TSV, by its name."""
    return file.suffix.lower() in (*CSV, *TSV)


def _is_tsv(file: Path) -> bool:
    return file.suffix.lower() in TSV


def column_types(file: Path) -> dict[str, pa.DataType]:
    """Names and Arrow types of a file's columns, in order; strings for CSV.

    Raises :class:`DataError` for an empty CSV file and a Parquet file without rows, and for columns without a name or
    with equal names.
    """
    if is_csv(file):
        with gone_named(file):
            names = [name.strip() for name in _header(file)]
        types = dict.fromkeys(names, pa.string())
    else:
        with open_parquet(file) as parquet:
            schema, empty = parquet.schema_arrow, not parquet.metadata.num_rows
        names = list(schema.names)
        types = {field.name: field.type for field in schema}
        if empty:
            raise DataError(f"{file}: has no rows.")
    _check_header(file, names)
    return types


def blocks(file: Path, columns: Sequence[str]) -> Iterator[Block]:
    """The rows of a file in order, with the columns `columns`, in blocks of bounded size.

    Raises :class:`DataError` for a file that is damaged or not UTF-8, a row with too many or too few values, a quote
    that is not closed, and a file without rows.
    """
    first = 1
    with gone_named(file):
        for batch in _csv_batches(file, columns) if is_csv(file) else _parquet_batches(file, columns):
            if batch.num_rows:
                yield Block(batch, first)
            first += batch.num_rows
    if first == 1:
        raise DataError(f"{file}: has no rows.")


def _parquet_batches(file: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    # Spark's timestamps (INT96) in microseconds: as nanoseconds, the year 9999 would become the year 1816.
    with open_parquet(file, coerce_int96_timestamp_unit="us") as parquet:
        metadata = parquet.metadata
        groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
        width = sum(group.total_byte_size for group in groups) // max(1, metadata.num_rows)
        at_once = max(1, min(_BLOCK_ROWS, _PARQUET_BYTES // max(1, width)))
        for batch in parquet.iter_batches(at_once, columns=list(columns)):
            # Parquet may return further columns: `columns` also selects a nested field of the same path. Pick by
            # name.
            arrays = [plain(batch[name]) for name in columns]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _csv_batches(file: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    header = _header(file)
    by_name = {name.strip(): name for name in header}
    wanted = [by_name[name] for name in columns]
    last = _Last(header[-1], is_wanted=header[-1] in wanted, has_quotes=not _is_tsv(file))
    ragged: list[pa.csv.InvalidRow] = []

    def refuse(row: pa.csv.InvalidRow) -> str:
        ragged.append(row)
        return "error"

    missing = pa.array(MISSING)
    with _errors_of(file, ragged):
        reader = pa.csv.open_csv(
            file,
            # With threads, pyarrow does not know the number of an invalid row.
            read_options=pa.csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            parse_options=_tabs(refuse)
            if _is_tsv(file)
            else pa.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=refuse),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict.fromkeys(header, pa.string()) | last.types,
                include_columns=[*wanted, *last.types],
                strings_can_be_null=False,
            ),
        )
        for batch in reader:
            last.add(batch)
            texts = [plain(batch[name]) for name in wanted]
            kept = [
                pc.if_else(pc.is_in(text, value_set=missing), pa.scalar(None, pa.string()), text)
                for text in texts
            ]
            yield pa.RecordBatch.from_arrays(kept, names=list(columns))
        last.check(file)


class _Last:
    """The last value of a CSV file's last column, in which a quote that is not closed hides all later rows."""

    def __init__(self, column: str, is_wanted: bool, has_quotes: bool) -> None:
        self._column, self._has_quotes = column, has_quotes
        # A column that is not wanted is read as bytes, which need not be UTF-8.
        self.types = {column: pa.binary()} if has_quotes and not is_wanted else {}
        self._rows, self._value = 0, b""

    def add(self, batch: pa.RecordBatch) -> None:
        """Note the last value of a batch."""
        self._rows += batch.num_rows
        if batch.num_rows and self._has_quotes:
            self._value = batch[self._column][-1:].cast(pa.binary())[0].as_py()

    def check(self, file: Path) -> None:
        """Raise :class:`DataError` if no quote closes the value; all batches were added."""
        if self._has_quotes:
            check_closed(file, self._rows, self._column.strip(), self._value)


def _tabs(refuse: Callable[["pa.csv.InvalidRow"], str]) -> "pa.csv.ParseOptions":
    return pa.csv.ParseOptions(delimiter="\t", quote_char=False, invalid_row_handler=refuse)


@contextmanager
def _errors_of(file: Path, ragged: "list[pa.csv.InvalidRow]") -> Iterator[None]:
    try:
        yield
    except pa.ArrowInvalid as error:
        if ragged:
            row = ragged[0]
            hint = "" if _is_tsv(file) else f"; {quotes_remedy(row.text, _COMMA)}"
            raise DataError(
                f"{file} row {row.number - 1}: has {row.actual_columns} values, and the header has "
                f"{row.expected_columns} names. Correct it{hint}."
            ) from error
        _check_utf8(file)
        if "straddling object" in str(error):
            raise DataError(
                f"{file}: a row has more than {_BLOCK_BYTES >> 20} MiB; a quote is probably not closed."
            ) from error
        raise DataError(f"{file}: can't be read as CSV ({error}).") from error


def _header(file: Path) -> list[str]:
    """The column names in the first non-empty line of a CSV file.

    Raises :class:`DataError` if there is no such line, and for separators other than commas.
    """
    _check_utf8(file, first_line_only=True)
    with file.open(
        encoding="utf-8-sig", errors="replace", newline=""
    ) as stream:  # later lines may be damaged
        try:
            names = next((row for row in _rows(file, stream) if row), [])
        except csv.Error as error:
            raise DataError(f"{file}: its header can't be read as CSV ({error}).") from error
    if not names:
        raise DataError(f"{file}: is empty. A CSV file has the names of the columns in its first line.")
    if len(names) == 1 and not _is_tsv(file):
        for mark, what in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
            if mark in names[0]:
                raise DataError(f"{file}: its values are separated by {what}. Write it again, with commas.")
    return names


def _rows(file: Path, lines: Iterable[str]) -> Iterator[list[str]]:
    if _is_tsv(file):
        return csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    return csv.reader(lines)


def _check_header(file: Path, names: list[str]) -> None:
    uses = Counter(names)
    for position, name in enumerate(names, 1):
        if not name:
            raise DataError(
                f"{file}: column {position} has no name. Name it, or remove it; pandas writes such a column unless "
                "index=False."
            )
        if uses[name] > 1:
            raise DataError(f"{file}: two columns are named {name!r}. Rename or remove one of them.")


def _check_utf8(file: Path, first_line_only: bool = False) -> None:
    """Raises :class:`DataError`, with the number of the line, if a line is not UTF-8."""
    with file.open("rb") as stream:
        if stream.read(2) in (b"\xff\xfe", b"\xfe\xff"):
            raise DataError(
                f"{file}: is UTF-16, not UTF-8. Convert it, as by: iconv -f UTF-16 -t UTF-8 FILE > NEW_FILE"
            )
        stream.seek(0)
        lines = islice(stream, 1) if first_line_only else stream
        for number, line in enumerate(lines, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{file} line {number}: is not UTF-8 (byte 0x{line[error.start]:02x}). Convert the file, as by: "
                    "iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW_FILE"
                ) from error
