"""The interface of an object store, and the stores by the scheme of their URL.

Keys are relative paths with `/`. There is no rename, no append and no folder: an object is complete or absent.
"""

import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import urlsplit

from training.errors import ResourceError, SettingError
from training.seams import STORES, part_named

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


def ignored(_moved: int) -> None:
    """For a caller that does not ask how far an upload or a download is."""


class StoredObject(NamedTuple):
    """An object in a listing: `changed` is when it was written, in seconds since 1970 by the store's clock."""

    key: str
    bytes: int
    changed: float


class ObjectStore(Protocol):
    """Objects under one URL.

    Each method raises :class:`training.errors.TransientError` when the store does not answer, and
    :class:`training.errors.SettingError` when the store refuses access. `moved` is called with a number of bytes as
    soon as these were transferred, maybe in another thread.
    """

    @property
    def url(self) -> str:
        """The URL under which all keys lie."""

    def get(self, key: str) -> bytes:
        """The content of an object. Raises FileNotFoundError when there is none."""

    def get_file(self, key: str, target: Path, moved: Callable[[int], None] = ignored) -> None:
        """Download an object to the file `target`. Raises FileNotFoundError when there is no such object."""

    def put_file(self, key: str, source: Path, moved: Callable[[int], None] = ignored) -> None:
        """Upload a file, in place of an object that has this key. Readers see the old or the new object, whole."""

    def put_new(self, key: str, data: bytes) -> bool:
        """Create an object, if no object has this key: of several writers, exactly one gets True.

        After an error, the object may exist or not: the caller reads the key to learn which.
        """

    def keys(self, prefix: str) -> list[str]:
        """All keys that begin with `prefix` and a `/`, sorted; never from a cache."""

    def listing(self, prefix: str) -> list[StoredObject]:
        """The objects of :meth:`keys`, with size and time."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; keys without an object are ignored."""

    def filesystem(self) -> "FileSystem":
        """The store as a file system of pyarrow, in which paths are keys: for Ray Data's readers."""


def check_url(url: str) -> str:
    """The URL without a slash at its end. Raises ValueError for a URL that no object store has."""
    parts = urlsplit(url)
    if parts.scheme not in STORES:
        raise ValueError(f"a URL that begins with {', '.join(f'{scheme}://' for scheme in STORES)}")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("a URL without user, password, `?` and `#`; credentials come from the environment")
    if (parts.scheme == "file") == bool(parts.netloc) or (parts.scheme == "file" and len(parts.path) < 2):
        raise ValueError("file:///an/absolute/path, or the name of a bucket, as in s3://bucket/folder")
    return url.rstrip("/")


def open_store(url: str) -> ObjectStore:
    """The store at a URL. Raises :class:`SettingError` when the package for its scheme is not installed."""
    module = part_named(STORES, urlsplit(url).scheme)
    try:
        store: ObjectStore = module.open_store(url)
    except ImportError as error:
        raise SettingError(f"storage.url: {url} needs a Python package that is missing ({error})") from error
    return store


def check_store(store: ObjectStore) -> None:
    """Try each kind of access that a run needs, with a small object under `probes/`, which is then deleted.

    Creates the object twice: some servers that speak the S3 protocol ignore the condition of a write. Raises
    :class:`ResourceError` when the store lets the second overwrite the first, and the errors of :class:`ObjectStore`.
    """
    key = f"probes/{uuid.uuid4().hex}"
    if not store.put_new(key, b"1"):
        raise _unfit(store, "does not create a new object")
    try:
        if store.put_new(key, b"2") or store.get(key) != b"1":
            raise _unfit(
                store,
                "overwrites objects that a conditional write must not overwrite (header If-None-Match of S3)",
            )
        if key not in store.keys("probes"):
            raise _unfit(store, "does not list an object that was created just before")
    finally:
        store.delete([key])


def _unfit(store: ObjectStore, what: str) -> ResourceError:
    return ResourceError(
        f"storage.url: {store.url} {what}. Checkpoints can't be committed there: use another store, or a newer "
        "version of its server."
    )
