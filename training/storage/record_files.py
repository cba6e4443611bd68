"""Records on disk, each with a checksum: one JSON object a file, or one a line of an append-only file.

The checksum is over the content, the file's name and its `owner` (a run's folder name, a model's name), so a record of
another run, or of another kind, is damage like a flipped bit. Files without checksums, as earlier
versions wrote them, are read as they are.

Damage raises :class:`DamagedError`. A caller that can make the record again moves the file aside with
:func:`set_aside`; one that only looks reads with :func:`find_record` or :meth:`Lines.undamaged`, which warn.
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

_CHECKSUM = "sha256_of_the_rest"  # a field of a record
_NUMBER, _CHECK = "line", "check"  # fields of a line
_CHECK_DIGITS = 16
_TAIL_BYTES = 1 << 16
_REMEDY = (
    "Restore it from a backup, or move it away and run `evergreen retrain` again: what can be made again is."
)


class DamagedError(DataError):
    """A record is not what was written; `file` is where, `what` is wrong with it."""

    def __init__(self, file: Path, what: str, remedy: str = _REMEDY):
        super().__init__(f"{file}: damaged ({what}). {remedy}")
        self.file, self.what = file, what


def write_record(file: Path, record: BaseModel, owner: str) -> None:
    """Write a record, whole or not at all."""
    write_text(file, record_text(file.name, record, owner))


def record_text(name: str, record: BaseModel, owner: str) -> str:
    """What :func:`write_record` writes to a file of this name, for a folder that appears as a whole."""
    content = _content(record)
    return json.dumps(content | {_CHECKSUM: _checksum(name, owner, content)}, indent=1)


def read_record(file: Path, kind: type[R], owner: str, remedy: str = _REMEDY) -> R:
    """The record in `file`. Raises :class:`DamagedError`, and FileNotFoundError when there is none."""
    try:
        content = _parsed(file.read_bytes())
        written = content.pop(_CHECKSUM, None)
        if written is not None and written != _checksum(file.name, owner, content):
            raise ValueError("its checksum is not that of its content, or it belongs to something else")
        return kind.model_validate(content)
    except IsADirectoryError:
        raise DamagedError(file, "it is a folder", remedy) from None
    except (ValueError, RecursionError) as error:
        raise DamagedError(file, _reason(error), remedy) from error


def find_record(file: Path, kind: type[R], owner: str) -> R | None:
    """The record in `file`; None when there is none, or when it is damaged, which is a warning."""
    try:
        return read_record(file, kind, owner)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        log.warning("%s: damaged (%s); it is not used", error.file, error.what)
        return None


def find_or_set_aside(file: Path, kind: type[R], owner: str) -> R | None:
    """As :func:`find_record`, for a caller that makes a damaged record again: it is moved out of the way."""
    try:
        return read_record(file, kind, owner)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        set_aside(file, error.what)
        return None


@dataclass(frozen=True)
class Lines(Generic[R]):
    """The records of a file of lines that can be read; `sound` of them come before the first damage, if there is any.

    A last line that a killed writer cut short is no damage: it was never written.
    """

    file: Path
    records: list[R]
    sound: int
    damage: str

    def all(self) -> list[R]:
        """Every record. Raises :class:`DamagedError`."""
        if self.damage:
            raise DamagedError(self.file, self.damage)
        return self.records

    def undamaged(self) -> list[R]:
        """The records that can be read; a warning says when others can't."""
        if self.damage:
            log.warning("%s: damaged (%s); the other lines are used", self.file, self.damage)
        return self.records


def append_record(file: Path, record: BaseModel, owner: str) -> None:
    """Add a record as a line; see :func:`training.storage.files.append_line`."""
    append_line(file, _line(file.name, record, owner, count_lines(file, owner) + 1))


def write_records(file: Path, records: Iterable[BaseModel], owner: str) -> None:
    """Write a file of lines, whole or not at all."""
    lines = (_line(file.name, one, owner, number) for number, one in enumerate(records, start=1))
    write_text(file, "".join(f"{line}\n" for line in lines))


def read_lines(file: Path, kind: type[R], owner: str, appended: bool = True) -> Lines[R]:
    """The records of a file of lines, and what is wrong with it; none when there is no file.

    Lines are numbered. What can't be read between two consecutive numbers is the rest of a write that was cut short,
    and is left out; where a number is missing, a line is damaged. A file that is not `appended` to was written whole:
    there, an unfinished last line is damage, too.
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
    """Where lines are damaged, set the file aside and write the others again, so that none of these is lost."""
    found = read_lines(file, kind, owner)
    if found.damage:
        set_aside(file, f"{found.damage}; its other lines are kept")
        write_records(file, found.records, owner)


def set_aside(path: Path, why: str) -> None:
    """Rename a damaged file or folder to `<name>.damaged-<n>`; a warning says so."""
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in count())
    aside = next(name for name in names if not name.exists())
    path.rename(aside)
    log.warning("%s is damaged (%s) and was set aside as %s", path, why, aside.name)


class LineReader(Generic[R]):
    """Takes the lines of a file in order and finds out which are missing or damaged."""

    def __init__(self, file: Path, kind: type[R], owner: str):
        self.file, self.kind, self.owner = file, kind, owner
        self.records: list[R] = []
        self.number = 0  # of the last line
        self.unread = ""  # what is wrong with lines since
        self.damage, self.sound = "", 0
        self._taken = 0

    def take(self, line: bytes) -> None:
        """Read the next line; an empty one says nothing."""
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
            if isinstance(
                error, ValidationError
            ):  # no rest of a write: JSON, and more than that if it has a number
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
        """The records, and what is wrong with the lines."""
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
    """Number and content of a line; no number where it was written without a checksum. Raises ValueError."""
    content = _parsed(line)
    check = content.pop(_CHECK, None)
    if check is None and _NUMBER not in content:
        return None, content
    if check != _checksum(name, owner, content)[:_CHECK_DIGITS]:
        raise ValueError("its checksum is not that of its content, or it belongs to something else")
    return int(content.pop(_NUMBER)), content


def _is_unfinished(line: bytes) -> bool:
    """Whether a line ends before its object does, as a killed writer leaves it; zeros come of a loss of power."""
    if b"\0" in line:
        return False
    try:
        json.JSONDecoder().raw_decode(line.decode())
    except ValueError:
        return True
    return False


def count_lines(file: Path, owner: str) -> int:
    """Number of the last line, damaged ones counted; the rest of a write that was cut short is no line."""
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
    """The file's bytes, or the `last` ones; none when there is no file."""
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
    content = json.loads(text.decode())
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
