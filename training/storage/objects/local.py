"""An object store in a folder that all machines share (`file:///path`): each object is a file."""

import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from urllib.parse import unquote, urlsplit

from training.errors import ResourceError, SettingError, TransientError
from training.storage.files import atomic_file, sync_folder
from training.storage.objects.base import StoredObject, ignored

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

P = ParamSpec("P")
R = TypeVar("R")

_CHUNK = 1 << 23
_SHARED_LEVELS = 3  # the store's own folder, such as runs/, and a recipe's folder: others may write there now
_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would exceed the size limit",
}

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


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


@contextmanager
def _with_space(path: Path) -> Iterator[None]:
    """Turn an error of the block that means a full disk into a :class:`ResourceError` that names `path`, its target."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        disk = next(folder for folder in path.parents if folder.is_dir())
        free = shutil.disk_usage(disk).free
        raise ResourceError(
            f"storage.url: {path} can't be written: {_FULL[error.errno]} ({free / 1e6:,.1f} MB are free at {disk}). "
            "Free some space or raise the limit there, and run the same command: it resumes."
        ) from error


class LocalStore:
    """Implements :class:`training.storage.objects.base.ObjectStore`.

    An object is written to the file `.NAME.RANDOM.tmp` beside its own file, and then renamed. This file is listed, too:
    a killed upload leaves it, and it is deleted with the other objects that its attempt left.
    """

    def __init__(self, url: str, folder: Path):
        self.url, self._folder = url, folder

    @_explained
    def get(self, key: str) -> bytes:
        return (self._folder / key).read_bytes()

    @_explained
    def get_file(self, key: str, target: Path, moved: Callable[[int], None] = ignored) -> None:
        with _with_space(target), atomic_file(target, durable=False) as aside:
            _copy(self._folder / key, aside, moved)

    @_explained
    def put_file(self, key: str, source: Path, moved: Callable[[int], None] = ignored) -> None:
        try:
            with _with_space(self._folder / key), atomic_file(self._folder / key) as aside:
                _copy(source, aside, moved)
        except FileNotFoundError as error:
            if not source.exists():
                raise
            raise _removed(self._folder / key) from error

    @_explained
    def put_new(self, key: str, data: bytes) -> bool:
        target = self._folder / key
        try:
            with _with_space(target), _written_aside(target, data) as aside:
                try:
                    os.link(aside, target)  # unlike a rename, fails when the target exists
                except FileExistsError:
                    return False
                except OSError as error:
                    if error.errno not in _NO_LINKS:
                        raise
                    raise ResourceError(
                        f"storage.url: the file system of {target.parent} has no hard links, which commits "
                        "need. Use a folder on another file system, or an object store."
                    ) from error
                sync_folder(target.parent)
        except FileNotFoundError as error:
            raise _removed(target) from error
        return True

    @_explained
    def keys(self, prefix: str) -> list[str]:
        # Unlike Path.rglob, os.walk leaves out folders that another process removes meanwhile.
        walked = os.walk(self._folder / prefix, onerror=_raised)
        files = (Path(folder) / name for folder, _, names in walked for name in names)
        return sorted(file.relative_to(self._folder).as_posix() for file in files if file.is_file())

    @_explained
    def listing(self, prefix: str) -> list[StoredObject]:
        objects = []
        for key in self.keys(prefix):
            with suppress(FileNotFoundError):  # another process deleted the object in the meantime
                status = (self._folder / key).stat()
                objects.append(StoredObject(key, status.st_size, status.st_mtime))
        return objects

    @_explained
    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            file = self._folder / key
            file.unlink(missing_ok=True)
            self._remove_empty(file.relative_to(self._folder).parents)

    def _remove_empty(self, folders: Sequence[Path]) -> None:
        """Remove the empty ones of these relative paths, innermost first; not the two outermost, which runs share."""
        with suppress(OSError):  # not empty, or removed by another process
            for folder in folders[:-_SHARED_LEVELS]:
                (self._folder / folder).rmdir()

    def filesystem(self) -> "FileSystem":
        from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

        return SubTreeFileSystem(str(self._folder), LocalFileSystem())


def _raised(error: OSError) -> None:
    """Raise an error of listing a folder; one that is missing, or was removed by another process, has no objects."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _removed(target: Path) -> TransientError:
    return TransientError(
        f"storage.url: {target} was not written, because another process, such as a newer attempt or evergreen gc, "
        "removed it meanwhile. Run the same command again."
    )


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
