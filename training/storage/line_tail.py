"""Incremental reader of a record file that is being written: each poll reads only the new lines."""

import os
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel

from training.storage.record_files import LineReader

R = TypeVar("R", bound=BaseModel)


class LineTail(Generic[R]):
    """Reads the new records of an append-only file; reads the file from its beginning when it was replaced.

    A writer that drops lines writes a new file and renames that file over the old file
    (:func:`training.storage.record_files.write_records`). So a file with another inode, or with fewer bytes than were
    read, was replaced.
    """

    def __init__(self, file: Path, kind: type[R], owner: str):
        self.file, self._kind, self._owner = file, kind, owner
        self._begin(inode=0)

    def _begin(self, inode: int) -> None:
        self._inode, self._offset, self._given = inode, 0, 0
        self._reader = LineReader(self.file, self._kind, self._owner)

    def new(self) -> list[R]:
        """The records of the lines that were completed since the last call; none when there is no file."""
        try:
            with self.file.open("rb") as stream:
                status = os.fstat(stream.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._begin(status.st_ino)
                stream.seek(self._offset)
                *whole, rest = stream.read().split(b"\n")
                self._offset = stream.tell() - len(rest)
        except FileNotFoundError:
            return []
        for line in whole:
            self._reader.take(line)
        records = self._reader.records[self._given :]
        self._given = len(self._reader.records)
        return records

    @property
    def damage(self) -> str:
        """What is wrong with the lines read so far; empty when they are undamaged."""
        return self._reader.lines().damage
