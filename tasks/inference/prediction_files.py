"""Write predictions to disk, atomically: one Parquet or CSV file, or a folder of Parquet part files."""

import errno
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.inference.csv_rows import csv_writer, flat
from tasks.inference.outputs import Outputs, Totals
from training.errors import SettingError
from training.problems.base import Predictions
from training.storage.files import atomic_file, atomic_folder, sync_folder

_PART = re.compile(r"part-\d{5}\.parquet")
_OWN_COLUMNS = {"where", "model", "version"}
_GROUP_BYTES = 32 << 20
_GROUPS_A_PART = 16
_OCCUPIED = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
_FILES = (".parquet", ".csv")
_OTHER_FORMATS = frozenset(
    (
        *(".arrow", ".avro", ".feather", ".json", ".jsonl", ".npy", ".orc", ".parq", ".pq", ".tsv", ".txt"),
        *(".xls", ".xlsx", ".bz2", ".gz", ".zip", ".zst"),
    )
)
_LONGEST_NAME = 220  # bytes; file systems allow 255, and a temporary name is longer


def is_one_file(output: Path) -> bool:
    """Whether `output` is one file (its name ends in .parquet or .csv) and not a folder of part files."""
    return output.suffix.lower() in _FILES


def is_csv(output: Path) -> bool:
    """Whether `output` is a CSV file by its name."""
    return output.suffix.lower() == ".csv"


def check_places(source: Path, output: Path, overwrite: bool) -> None:
    """Refuse a missing input, and an output that would overwrite other data, be read as input or lie below a file.

    Raises :class:`SettingError` for each of them.
    """
    if not source.exists():
        raise SettingError(
            f"input: {source} does not exist. Check the spelling, and that the disk is mounted."
        )
    _check_name(output)
    if source == output or source in output.parents or output in source.parents:
        raise SettingError(
            f"output: {output} and the input {source} lie one inside the other. Give another place."
        )
    if not output.exists():
        above = next(parent for parent in output.parents if parent.exists())
        if not above.is_dir():
            raise SettingError(f"output: {above} is a file, so there is no {output}. Give another place.")
        return
    if not (output.is_file() or output.is_dir()):
        raise SettingError(f"output: {output} is a device or a pipe. Give the name of a file or of a folder.")
    if not overwrite:
        raise SettingError(f"output: {output} exists. Give another name, or allow it with overwrite.")
    if is_one_file(output) != output.is_file():
        a_folder = "a folder, but a name with this ending is that of a file"
        kind = a_folder if is_one_file(output) else "a file, not a folder"
        raise SettingError(f"output: {output} is {kind}. Give another name, or remove it.")
    if not is_one_file(output) and (foreign := _foreign(output)):
        raise SettingError(
            f"output: {output} holds {foreign}, which is no prediction, so it is not overwritten. Give another folder, "
            "or move it away."
        )


def _check_name(output: Path) -> None:
    """Refuse a name that is too long for the temporary name made of it, or that promises another format."""
    if output.suffix.lower() in _OTHER_FORMATS and not output.is_dir():
        raise SettingError(
            f"output: {output} ends in {output.suffix}, which is not written. A name that ends in "
            f"{' or '.join(_FILES)} gives one file, a name without an ending a folder of Parquet files."
        )
    if (length := len(output.name.encode())) > _LONGEST_NAME:
        raise SettingError(
            f"output: the name {output.name} has {length} bytes, more than {_LONGEST_NAME}. Give a shorter name."
        )


@contextmanager
def staged(output: Path, overwrite: bool) -> Iterator[Path]:
    """A temporary path that is renamed to `output` when the block succeeds.

    For a folder output, the path is an empty folder. An existing output folder is moved away just before the rename,
    because a folder can't be replaced atomically by a rename. Raises :class:`SettingError` when another process has
    created `output` meanwhile, unless `overwrite`.
    """
    if is_one_file(output):
        with atomic_file(output) as aside:
            yield aside
            _check_still_free(output, overwrite)
        return
    done = output.with_name(f".{output.name}.{uuid.uuid4().hex[:8]}.done")
    try:
        with atomic_folder(done) as aside:
            yield aside
            _check_still_free(output, overwrite)
        _take_place(done, output)
    finally:
        shutil.rmtree(done, ignore_errors=True)


@dataclass
class PredictionWriter:
    """Writes rows in the order of the calls. The limits of row groups and part files depend only on row numbers."""

    path: Path
    one_file: bool
    outputs: Outputs
    model: str
    version: str
    group_rows: int = 0
    rows: int = field(default=0, init=False)
    totals: Totals = field(init=False)
    _pending: list[pa.Table] = field(default_factory=list)
    _pending_rows: int = 0
    as_csv: bool = False
    _writer: pq.ParquetWriter | pa.csv.CSVWriter | None = None
    _groups: int = 0

    def __post_init__(self) -> None:
        self.group_rows = self.group_rows or max(1, min(1 << 16, _GROUP_BYTES // self.outputs.row_bytes))
        self.totals = self.outputs.totals()

    def write(self, where: npt.NDArray[np.object_], predictions: Predictions) -> None:
        """Add rows; `where` has the location of each row, `predictions` is float32 with one entry per row."""
        if not len(where):
            return
        self.rows += len(where)
        self.totals.add(predictions)
        self._pending.append(self._table(where, predictions))
        self._pending_rows += len(where)
        while self._pending_rows >= self.group_rows:
            self._flush()

    def close(self) -> None:
        """Write the remaining rows and close the last file."""
        while self._pending:
            self._flush()
        if self._writer is not None:
            self._writer.close()

    def _flush(self) -> None:
        rows = pa.concat_tables(self._pending)
        self._pending = [rows.slice(self.group_rows)] if len(rows) > self.group_rows else []
        self._pending_rows = max(0, len(rows) - self.group_rows)
        if not self.one_file and self._writer is not None and self._groups % _GROUPS_A_PART == 0:
            self._writer.close()
            self._writer = None
        if self._writer is None:
            part = self.path / f"part-{self._groups // _GROUPS_A_PART:05d}.parquet"
            self._writer = self._opened(self.path if self.one_file else part, rows.schema)
        self._writer.write_table(rows.slice(0, self.group_rows).combine_chunks())
        self._groups += 1

    def _opened(self, file: Path, schema: pa.Schema) -> pq.ParquetWriter | pa.csv.CSVWriter:
        if self.as_csv:
            return csv_writer(file, schema)
        return pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True)

    def _table(self, where: npt.NDArray[np.object_], predictions: Predictions) -> pa.Table:
        columns = {
            "where": pa.array(where.tolist(), pa.string()),
            **self.outputs.columns(predictions),
            "model": pa.array([self.model] * len(where), pa.string()),
            "version": pa.array([self.version] * len(where), pa.string()),
        }
        rows = pa.table(columns).replace_schema_metadata(self.outputs.metadata)
        return flat(rows) if self.as_csv else rows


def _foreign(folder: Path) -> str | None:
    """Name of an entry of `folder` that :class:`PredictionWriter` did not write, or None."""
    return next((entry.name for entry in sorted(folder.iterdir()) if not _is_part(entry)), None)


def _is_part(entry: Path) -> bool:
    if not _PART.fullmatch(entry.name) or not entry.is_file():
        return False
    try:
        return set(pq.read_schema(entry).names) >= _OWN_COLUMNS
    except pa.ArrowException:
        return False


def _check_still_free(output: Path, overwrite: bool) -> None:
    if output.exists() and not overwrite:
        raise SettingError(
            f"output: another process made {output} meanwhile; it was kept. Give another name."
        )


def _take_place(done: Path, output: Path) -> None:
    """Rename `done` to `output`; a failure or a signal between the renames puts the former folder back."""
    old = output.with_name(f".{output.name}.{uuid.uuid4().hex[:8]}.old")
    try:
        if output.exists():
            output.rename(old)
        done.rename(output)
    except BaseException as error:
        if put_back := old.exists() and not output.exists():
            old.rename(output)
        if isinstance(error, OSError) and error.errno in _OCCUPIED and not put_back:
            raise SettingError(
                f"output: another process made {output} meanwhile; it was kept. Give another name."
            ) from error
        raise
    finally:
        if output.exists():
            shutil.rmtree(old, ignore_errors=True)
    sync_folder(output.parent)
