"""The interface of an object store, and the function that opens the store at a URL.

Keys are relative paths with `/`. There is no rename, no append and no folder: an object is complete or absent.
"""

import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import urlsplit

from training.errors import EvergreenError, ResourceError, SettingError
from training.seams import STORES, part_named

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


def ignored(_moved: int) -> None:
    """Ignore the progress of an upload or a download; default of `moved`."""


class StoredObject(NamedTuple):
    """An object in a listing; `changed` is its time of writing, in seconds since 1970 by the store's clock."""

    key: str
    bytes: int
    changed: float


class ObjectStore(Protocol):
    """Objects under one URL.

    Each method raises :class:`training.errors.TransientError` when the store does not answer,
    :class:`training.errors.SettingError` when the store refuses access, and
    :class:`training.errors.ResourceError` when a disk is full. During a transfer, `moved` is called with the
    number of bytes since its last call, possibly in another thread.
    """

    @property
    def url(self) -> str:
        """The URL of the store; an object's URL is this URL, a slash and the key."""

    def get(self, key: str) -> bytes:
        """The content of an object. Raises FileNotFoundError when there is none."""

    def get_file(self, key: str, target: Path, moved: Callable[[int], None] = ignored) -> None:
        """Download an object to the file `target`. Raises FileNotFoundError when there is no such object."""

    def put_file(self, key: str, source: Path, moved: Callable[[int], None] = ignored) -> None:
        """Upload a file, replacing an object with this key. Readers get the complete old object or the new one."""

    def put_new(self, key: str, data: bytes) -> bool:
        """Create an object; returns False if an object has this key. Of several writers, exactly one gets True.

        After an error, the object may or may not exist: the caller reads the key to find out.
        """

    def keys(self, prefix: str) -> list[str]:
        """All keys that begin with `prefix` and a `/`, sorted; never from a cache.

        A store may also list, under a name that no caller writes, the part of an object that is being written, or that
        a killed process left: this part can be deleted like an object.
        """

    def listing(self, prefix: str) -> list[StoredObject]:
        """The objects of :meth:`keys`, with size and time."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; keys without an object are ignored."""

    def filesystem(self) -> "FileSystem":
        """The store as a file system of pyarrow for Ray Data's readers; paths are keys."""


def check_url(url: str) -> str:
    """The URL without a slash at its end. Raises ValueError, which describes a valid URL, for any other URL."""
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

    Creates the object twice, because some servers with the S3 protocol ignore the condition of a write. Raises
    :class:`ResourceError` when the store does not create the object, overwrites it or does not list it, and the
    errors of :class:`ObjectStore`.
    """
    key = f"probes/{uuid.uuid4().hex}"
    try:
        _try_writes(store, key)
    except EvergreenError:
        with suppress(EvergreenError):  # the first error says more
            store.delete([key])
        raise
    store.delete([key])


def _try_writes(store: ObjectStore, key: str) -> None:
    # After a lost reply, the library retries, and the object exists already.
    if not store.put_new(key, b"1") and not _is_there(store, key, b"1"):
        raise _unfit(store, "does not create a new object")
    if store.put_new(key, b"2") or store.get(key) != b"1":
        raise _unfit(
            store,
            "overwrites objects that a conditional write must not overwrite (header If-None-Match of S3)",
        )
    if key not in store.keys("probes"):
        raise _unfit(store, "does not list an object that was created just before")


def _is_there(store: ObjectStore, key: str, content: bytes) -> bool:
    try:
        return store.get(key) == content
    except FileNotFoundError:
        return False


def _unfit(store: ObjectStore, what: str) -> ResourceError:
    return ResourceError(
        f"storage.url: {store.url} {what}. Checkpoints can't be committed there: use another store, or a newer "
        "version of its server."
    )
