"""An object store in a bucket, through a file system of fsspec: S3 and compatible stores, Google Cloud, Azure."""

import errno
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from training.errors import EvergreenError, SettingError, TransientError
from training.storage.objects.base import StoredObject, ignored

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

P = ParamSpec("P")
R = TypeVar("R")

_PRECONDITION_FAILED = 412
_LONGEST_REASON = 300  # characters
_PART_BYTES, _MOST_PARTS = 8 << 20, 10_000  # S3 takes at most so many parts of an object
_DOING = {
    "get": "read an object",
    "get_file": "download an object",
    "put_file": "upload an object",
    "put_new": "create an object",
    "listing": "list objects",
    "delete": "delete objects",
}


def open_store(url: str) -> "RemoteStore":
    """The store at a bucket's URL, with fsspec's usual credentials.

    Raises ImportError when the package for the URL's scheme is not installed.
    """
    from fsspec.core import url_to_fs

    # With a cache of listings, a process would not see objects that other processes have written (s3fs, issue 851).
    files, root = url_to_fs(url, use_listings_cache=False)
    return RemoteStore(url, files, root)


def _explained(call: Callable[P, R]) -> Callable[P, R]:
    """Raise the errors of fsspec and of the libraries that it uses as errors with a message for the user."""

    doing = _DOING[call.__name__]

    @wraps(call)
    def explained(*args: P.args, **kwargs: P.kwargs) -> R:
        url = args[0].url  # type: ignore[attr-defined]  # the first argument is the store
        try:
            return call(*args, **kwargs)
        except EvergreenError:
            raise
        except FileNotFoundError as error:
            if call.__name__.startswith("get") or _is_of_this_machine(error):
                raise
            # Also the answer when the end of an upload is sent a second time.
            if _code(error) == "NoSuchUpload":
                raise TransientError(
                    f"storage.url: {url} does not know an upload that was begun. Run the same command again."
                ) from error
            raise SettingError(
                f"storage.url: {url}: there is no such bucket. Create it, or correct the URL."
            ) from None
        except Exception as error:
            if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):  # this machine's disk is full
                raise
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST_REASON]}"
            if type(error).__name__ == "ParamValidationError":  # botocore's, before it asks the server
                raise SettingError(
                    f"storage.url: {url} is no URL of a bucket ({reason}). Correct the URL."
                ) from error
            if isinstance(error, PermissionError) or "Credentials" in type(error).__name__:
                raise SettingError(
                    f"storage.url: {url} refuses to {doing} ({reason}). Set credentials that allow it in the "
                    "environment of the driver and of every Ray node."
                ) from error
            raise TransientError(
                f"storage.url: {url} does not answer the request to {doing} ({reason}). Check the address and the "
                "server, and run the same command again."
            ) from error

    return explained


def _response(error: OSError) -> dict[str, Any]:
    """The answer of an S3 server that led to the error; empty if there is none."""
    return getattr(error.__cause__, "response", None) or {}


def _code(error: OSError) -> str:
    """The server's code of the error, such as `NoSuchBucket`; empty if there is none."""
    return str(_response(error).get("Error", {}).get("Code", ""))


def _is_of_this_machine(error: FileNotFoundError) -> bool:
    """Whether a file of this machine is missing: the error of the operating system has its name."""
    return isinstance(error.filename, str) and Path(error.filename).is_absolute()


class RemoteStore:
    """Implements :class:`training.storage.objects.base.ObjectStore`; `files` is a file system of fsspec."""

    def __init__(self, url: str, files: Any, root: str):
        self.url, self._files, self._root = url, files, root.rstrip("/")

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    @_explained
    def get(self, key: str) -> bytes:
        return bytes(self._files.cat_file(self._path(key)))

    @_explained
    def get_file(self, key: str, target: Path, moved: Callable[[int], None] = ignored) -> None:
        self._files.get_file(self._path(key), str(target), callback=_callback(moved))

    @_explained
    def put_file(self, key: str, source: Path, moved: Callable[[int], None] = ignored) -> None:
        # s3fs counts whole parts, by default of 50 MB. Other file systems of fsspec don't know this argument.
        bytes_of_part = max(_PART_BYTES, -(-source.stat().st_size // _MOST_PARTS))
        parts = {"chunksize": bytes_of_part} if "s3" in self._files.protocol else {}
        self._files.put_file(str(source), self._path(key), callback=_callback(moved), **parts)

    @_explained
    def put_new(self, key: str, data: bytes) -> bool:
        try:
            self._files.pipe_file(self._path(key), data, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            # s3fs recognises this answer of AWS by a field that other servers leave out.
            if _response(error).get("ResponseMetadata", {}).get("HTTPStatusCode") == _PRECONDITION_FAILED:
                return False
            raise
        return True

    def keys(self, prefix: str) -> list[str]:
        return [stored_object.key for stored_object in self.listing(prefix)]

    @_explained
    def listing(self, prefix: str) -> list[StoredObject]:
        entries = self._files.find(self._path(prefix), detail=True)
        return [
            StoredObject(str(path).removeprefix(f"{self._root}/"), int(entry["size"]), _changed(entry))
            for path, entry in sorted(entries.items())
        ]

    @_explained
    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                self._files.rm_file(self._path(key))
            except FileNotFoundError:
                continue

    def filesystem(self) -> "FileSystem":
        from pyarrow.fs import FSSpecHandler, PyFileSystem, SubTreeFileSystem

        return SubTreeFileSystem(self._root, PyFileSystem(FSSpecHandler(self._files)))


def _changed(entry: dict[str, Any]) -> float:
    """When an object was written, in seconds since 1970.

    Now, if the file system's listing has no known field with the time, so that the object counts as new.
    """
    times = (entry.get(name) for name in ("LastModified", "last_modified", "mtime"))
    return next((value.timestamp() for value in times if isinstance(value, datetime)), time.time())


def _callback(moved: Callable[[int], None]) -> Any:
    """A callback of fsspec that calls `moved` with the number of bytes transferred since the last call."""
    from fsspec.callbacks import Callback

    before = 0

    def report(_size: int | None, value: int) -> None:
        nonlocal before
        before, count = value, value - before
        moved(count)

    return Callback(hooks={"moved": report})
