"""An object store in an SQLite database: `sqlite://NAME/folder`, in the folder that SQLITE_OBJECTS names."""

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from training.storage.files import atomic_file
from training.storage.objects.base import StoredObject, ignored

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_TABLE = "create table if not exists objects (key text primary key, content blob, changed real)"


def open_store(url: str) -> "SqliteStore":
    """The store at a URL."""
    parts = urlsplit(url)
    return SqliteStore(url, Path(os.environ["SQLITE_OBJECTS"]) / f"{parts.netloc}.db", parts.path)


class SqliteStore:
    """Implements :class:`training.storage.objects.base.ObjectStore`; a unique key lets one writer create an object."""

    def __init__(self, url: str, file: Path, folder: str):
        self.url, self._file, self._folder = url, file, folder

    def get(self, key: str) -> bytes:
        rows, _ = self._run("select content from objects where key = ?", [self._whole(key)])
        if not rows:
            raise FileNotFoundError(f"{self.url}/{key}")
        content: bytes = rows[0][0]
        return content

    def get_file(self, key: str, target: Path, moved: Callable[[int], None] = ignored) -> None:
        content = self.get(key)
        with atomic_file(target, durable=False) as aside:
            aside.write_bytes(content)
        moved(len(content))

    def put_file(self, key: str, source: Path, moved: Callable[[int], None] = ignored) -> None:
        content = source.read_bytes()
        self._run("replace into objects values (?, ?, ?)", [self._whole(key), content, time.time()])
        moved(len(content))

    def put_new(self, key: str, data: bytes) -> bool:
        row = [self._whole(key), data, time.time()]
        return self._run("insert or ignore into objects values (?, ?, ?)", row)[1] == 1

    def keys(self, prefix: str) -> list[str]:
        return [stored_object.key for stored_object in self.listing(prefix)]

    def listing(self, prefix: str) -> list[StoredObject]:
        start = self._whole(prefix) + "/"
        query = "select key, length(content), changed from objects where substr(key, 1, ?) = ? order by key"
        rows, _ = self._run(query, [len(start), start])
        return [StoredObject(key[len(self._folder) + 1 :], size, changed) for key, size, changed in rows]

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._run("delete from objects where key = ?", [self._whole(key)])

    def filesystem(self) -> "FileSystem":
        """The objects that exist now."""
        import fsspec
        from pyarrow.fs import FSSpecHandler, PyFileSystem

        rows, _ = self._run("select key, content from objects", [])
        content = {key[len(self._folder) + 1 :]: data for key, data in rows}
        return PyFileSystem(FSSpecHandler(fsspec.filesystem("reference", fo=content)))

    def _whole(self, key: str) -> str:
        return f"{self._folder}/{key}"

    def _run(self, statement: str, values: Sequence[Any]) -> tuple[list[Any], int]:
        """Rows of a query, and the number of rows that a statement has changed."""
        with closing(sqlite3.connect(self._file, timeout=60)) as database, database:
            database.execute(_TABLE)
            done = database.execute(statement, values)
            return done.fetchall(), done.rowcount
