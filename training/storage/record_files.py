"""Records on disk, each with a checksum: one JSON object per file, or one per line of an append-only file.

The checksum covers the content, the file's name and its `owner` (a run's folder name, a model's name), so a record of
another run or of another kind counts as damaged, like a flipped bit. Files without checksums, which earlier versions
wrote, are read unchecked.

Damage raises :class:`DamagedError`. A caller that can create the record again moves the file aside with
:func:`set_aside`; a caller that only reads uses :func:`find_record` or :meth:`Lines.undamaged`, which log a warning.
"""

import hashlib
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from training.errors import DataError
from training.storage.files import append_line, write_text

log = logging.getLogger("evergreen.records")

R = TypeVar("R", bound=BaseModel)

_CHECKSUM = "sha256_of_the_rest"  # field that a record's file adds to the record
_NUMBER, _CHECK = "line", "check"  # fields that a file of lines adds to each record
_CHECK_DIGITS = 16
_TAIL_BYTES = 1 << 16
_REMEDY = (
    "Restore the file from a backup, or move the file away and run `evergreen retrain` again, which writes again what "
    "it can."
)


class DamagedError(DataError):
    """The content of `file` is not what was written; `what` says what is wrong with it."""

    def __init__(self, file: Path, what: str, remedy: str = _REMEDY):
        super().__init__(f"{file}: damaged ({what}). {remedy}")
        self.file, self.what = file, what


def write_record(file: Path, record: BaseModel, owner: str) -> None:
    """Write a record to a file, atomically."""
    write_text(file, record_text(file.name, record, owner))


def record_text(name: str, record: BaseModel, owner: str) -> str:
    """The text that :func:`write_record` writes to a file of this name; for files of an atomically written folder."""
    content = _content(record)
    return json.dumps(content | {_CHECKSUM: _checksum(name, owner, content)}, indent=1)


def read_record(file: Path, kind: type[R], owner: str, remedy: str = _REMEDY) -> R:
    """The record in `file`. Raises :class:`DamagedError`, and FileNotFoundError when there is no file."""
    try:
        content = file.read_bytes()
    except IsADirectoryError:
        raise DamagedError(file, "it is a folder", remedy) from None
    return parse_record(content, file, kind, owner, remedy)


def parse_record(text: bytes, file: Path, kind: type[R], owner: str, remedy: str = _REMEDY) -> R:
    """The record in a text that :func:`record_text` gave for `file`. Raises :class:`DamagedError`."""
    try:
        content = _parsed(text)
        written = content.pop(_CHECKSUM, None)
        if written is not None and written != _checksum(file.name, owner, content):
            raise ValueError("its checksum does not match: it was changed, or belongs to another file or run")
        return kind.model_validate(content)
    except (ValueError, RecursionError) as error:
        raise DamagedError(file, _reason(error), remedy) from error


def find_record(file: Path, kind: type[R], owner: str) -> R | None:
    """The record in `file`; None when there is no file, or when it is damaged (logged as a warning)."""
    try:
        return read_record(file, kind, owner)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        log.warning("%s: damaged (%s); it is not used", error.file, error.what)
        return None


def find_or_set_aside(file: Path, kind: type[R], owner: str) -> R | None:
    """As :func:`find_record`, for a caller that creates the record again: a damaged file is set aside."""
    try:
        return read_record(file, kind, owner)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        set_aside(file, error.what)
        return None


@dataclass(frozen=True)
class Lines(Generic[R]):
    """The readable records of a file of lines; the first `sound` of them come before any damage.

    `damage` says what is wrong, and is empty for an undamaged file. A last line that a killed writer cut short is no
    damage: its write never completed.
    """

    file: Path
    records: list[R]
    sound: int
    damage: str

    def all(self) -> list[R]:
        """Every record. Raises :class:`DamagedError` when a line is damaged or missing."""
        if self.damage:
            raise DamagedError(self.file, self.damage)
        return self.records

    def undamaged(self) -> list[R]:
        """The readable records; logs a warning when a line is damaged or missing."""
        if self.damage:
            log.warning("%s: damaged (%s); the other lines are used", self.file, self.damage)
        return self.records


def append_record(file: Path, record: BaseModel, owner: str) -> None:
    """Append a record as a numbered line; see :func:`training.storage.files.append_line`."""
    append_line(file, _line(file.name, record, owner, count_lines(file, owner) + 1))


def write_records(file: Path, records: Iterable[BaseModel], owner: str) -> None:
    """Write a file of lines, one for each record, atomically."""
    lines = (_line(file.name, record, owner, number) for number, record in enumerate(records, start=1))
    write_text(file, "".join(f"{line}\n" for line in lines))


def read_lines(file: Path, kind: type[R], owner: str, appended: bool = True) -> Lines[R]:
    """The records of a file of lines, and what is wrong with the file; no records when there is no file.

    Lines are numbered. An unreadable line between two consecutive numbers is left from a write that was cut short,
    and is skipped; where a number is missing, a line is damaged. A file that is not `appended` to was written
    atomically: in it, an unfinished last line is damage, too.
    """
    reader = LineReader(file, kind, owner)
    *whole, rest = _bytes_of(file).split(b"\n")
    for line in whole:
        reader.take(line)
    lost = reader.unread
    reader.take(rest)
    if appended and reader.unread and _is_unfinished(rest):
        reader.unread = lost
    if not appended and not reader.records and file.exists():
        reader.unread = reader.unread or "it is empty"
    return reader.lines()


def rewrite_undamaged(file: Path, kind: type[R], owner: str) -> None:
    """If lines are damaged, set the file aside and write a new file with the readable records, to keep these."""
    lines = read_lines(file, kind, owner)
    if lines.damage:
        set_aside(file, f"{lines.damage}; its other lines are kept")
        write_records(file, lines.records, owner)


def set_aside(path: Path, why: str) -> None:
    """Rename a damaged file or folder to `<name>.damaged-<n>`, with the first free `n`, and log a warning."""
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in count())
    aside = next(name for name in names if not name.exists())
    path.rename(aside)
    log.warning("%s is damaged (%s) and was set aside as %s", path, why, aside.name)


class LineReader(Generic[R]):
    """Parses the lines of a file in order and detects missing and damaged lines."""

    def __init__(self, file: Path, kind: type[R], owner: str):
        self.file, self.kind, self.owner = file, kind, owner
        self.records: list[R] = []
        self.number = 0  # number of the last readable line
        self.unread = ""  # what is wrong with the first unreadable line since; empty when there is none
        self.damage, self.sound = "", 0
        self._taken = 0

    def take(self, line: bytes) -> None:
        """Parse the next line; empty lines are ignored."""
        self._taken += 1
        if not line.strip():
            return
        try:
            number, content = _opened(line, self.file.name, self.owner)
            record = self.kind.model_validate(content)
            if number is None and self.number:
                raise ValueError("it has no checksum, though lines before it have")
        except (ValueError, RecursionError) as error:
            self.unread = self.unread or f"line {self._taken}: {_reason(error)}"
            # A line of complete JSON was not cut short, so it is damaged, even with a correct checksum.
            if isinstance(error, ValidationError):
                self._found(self.unread)
            return
        expected = self.number + 1 if self.number or not self.records else number
        if number is not None:
            if number != expected:
                self._found(
                    self.unread or f"line {self._taken}: it is number {number}, expected was {expected}"
                )
            self.number = number
        self.unread = ""
        self.records.append(record)

    def lines(self) -> Lines[R]:
        """The records so far, and what is wrong with the lines."""
        damage = self.damage or self.unread
        sound = self.sound if self.damage else len(self.records)
        return Lines(self.file, self.records, sound, damage)

    def _found(self, damage: str) -> None:
        if not self.damage:
            self.damage, self.sound = damage, len(self.records)


def _line(name: str, record: BaseModel, owner: str, number: int) -> str:
    content = _content(record) | {_NUMBER: number}
    return json.dumps(content | {_CHECK: _checksum(name, owner, content)[:_CHECK_DIGITS]})


def _opened(line: bytes, name: str, owner: str) -> tuple[int | None, dict[str, Any]]:
    """Number and content of a line; the number is None for a line without checksum. Raises ValueError."""
    content = _parsed(line)
    check = content.pop(_CHECK, None)
    if check is None and _NUMBER not in content:
        return None, content
    if check != _checksum(name, owner, content)[:_CHECK_DIGITS]:
        raise ValueError("its checksum does not match: it was changed, or belongs to another file or run")
    return int(content.pop(_NUMBER)), content


def _is_unfinished(line: bytes) -> bool:
    """Whether a line ends before its JSON object does, as a killed writer leaves it.

    A line with zero bytes does not count: those come from a power loss.
    """
    if b"\0" in line:
        return False
    try:
        json.JSONDecoder().raw_decode(line.decode())
    except ValueError:
        return True
    except RecursionError:  # nested deeper than any record
        return False
    return False


def count_lines(file: Path, owner: str) -> int:
    """Number of the last line, damaged lines included; an unfinished last line does not count."""
    content = _bytes_of(file, _TAIL_BYTES)
    damaged = 0
    for position, line in enumerate(reversed(content.split(b"\n"))):
        try:
            number, _ = _opened(line, file.name, owner)
            if number is not None:
                return number + damaged
        except ValueError:
            pass
        damaged += position > 0 and bool(line.strip())
    return sum(bool(line.strip()) for line in _bytes_of(file).split(b"\n")[:-1])


def _bytes_of(file: Path, last: int | None = None) -> bytes:
    """The file's bytes, or its `last` bytes; empty when there is no file."""
    try:
        with file.open("rb") as stream:
            if last is not None:
                stream.seek(max(0, file.stat().st_size - last))
            return stream.read()
    except FileNotFoundError:
        return b""


def _content(record: BaseModel) -> dict[str, Any]:
    return record.model_dump(mode="json", by_alias=True)


def _checksum(name: str, owner: str, content: dict[str, Any]) -> str:
    spelled = json.dumps([name, owner, content], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(spelled.encode()).hexdigest()


def _parsed(text: bytes) -> dict[str, Any]:
    if not text.strip():
        raise ValueError("it is empty")
    if not text.strip(b"\0"):
        raise ValueError("it holds zeros only")
    try:
        content = json.loads(text.decode())
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError(f"it holds no object, but a {type(content).__name__}")
    return content


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return (
            f"{'.'.join(map(str, first['loc'])) or 'record'}: {first['msg']}, or written by another version"
        )
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"it is not JSON: {error}"
    return str(error)
