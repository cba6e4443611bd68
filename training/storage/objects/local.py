"""An object store in a folder that all machines share (`file:///path`): each object is a file."""

import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from urllib.parse import unquote, urlsplit

from training.errors import SettingError, TransientError
from training.storage.files import atomic_file, sync_folder
from training.storage.objects.base import StoredObject, ignored

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

P = ParamSpec("P")
R = TypeVar("R")

_CHUNK = 1 << 23


def open_store(url: str) -> "LocalStore":
    """The store in the folder that a `file://` URL names."""
    return LocalStore(url, Path(unquote(urlsplit(url).path)))


def _explained(call: Callable[P, R]) -> Callable[P, R]:
    @wraps(call)
    def explained(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except FileNotFoundError:
            raise
        except PermissionError as error:
            raise SettingError(f"storage.url: {error}. Give this user access to the folder.") from error
        except OSError as error:
            raise TransientError(
                f"storage.url: {error}. Check the folder and its file system, and run the same command again."
            ) from error

    return explained


class LocalStore:
    """Implements :class:`training.storage.objects.base.ObjectStore`."""

    def __init__(self, url: str, folder: Path):
        self.url, self._folder = url, folder

    @_explained
    def get(self, key: str) -> bytes:
        return (self._folder / key).read_bytes()

    @_explained
    def get_file(self, key: str, target: Path, moved: Callable[[int], None] = ignored) -> None:
        _copy(self._folder / key, target, moved)

    @_explained
    def put_file(self, key: str, source: Path, moved: Callable[[int], None] = ignored) -> None:
        with atomic_file(self._folder / key) as aside:
            _copy(source, aside, moved)

    @_explained
    def put_new(self, key: str, data: bytes) -> bool:
        target = self._folder / key
        with _written_aside(target, data) as aside:
            try:
                os.link(aside, target)  # unlike a rename, fails when the target exists
            except FileExistsError:
                return False
        sync_folder(target.parent)
        return True

    @_explained
    def keys(self, prefix: str) -> list[str]:
        found = (self._folder / prefix).rglob("*")
        return sorted(
            file.relative_to(self._folder).as_posix()
            for file in found
            if not (file.name.startswith(".") and file.name.endswith(".tmp")) and file.is_file()
        )

    @_explained
    def listing(self, prefix: str) -> list[StoredObject]:
        found = [(key, (self._folder / key).stat()) for key in self.keys(prefix)]
        return [StoredObject(key, status.st_size, status.st_mtime) for key, status in found]

    @_explained
    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            (self._folder / key).unlink(missing_ok=True)

    def filesystem(self) -> "FileSystem":
        from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

        return SubTreeFileSystem(str(self._folder), LocalFileSystem())


def _copy(source: Path, target: Path, moved: Callable[[int], None]) -> None:
    with source.open("rb") as read, target.open("wb") as write:
        while chunk := read.read(_CHUNK):
            write.write(chunk)
            moved(len(chunk))


@contextmanager
def _written_aside(target: Path, data: bytes) -> Iterator[Path]:
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with aside.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        yield aside
    finally:
        aside.unlink(missing_ok=True)
