"""Dataset versions in an object store: uploaded by the driver, downloaded once by each node with workers.

A version's objects have the same keys as its files under `datasets/`. The manifest is uploaded last, and says which
files are there. Two homes may prepare a version with the same fingerprint, so the same rows, as different files, for
example by different versions of pyarrow. So a complete version is never overwritten: whoever uses it, from any home,
reads the files that the manifest in the store lists, and not those of its own manifest. When two homes upload at the
same time, the later manifest counts; workers that meanwhile read files of both find the difference by the digests, and
the next attempt downloads them again.
"""

import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from training.checkpoints.opening import prefix_of_dataset as prefix
from training.data.manifest import MANIFEST, check_parts, read_manifest
from training.data.manifest import files_of as digests_by_file
from training.errors import DataError, TransientError
from training.ray_cluster.node_caches import forget_old
from training.records import DatasetVersion
from training.storage.files import atomic_folder, digest_file, remove_folder, temporary_folder
from training.storage.objects.base import ObjectStore, ignored

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

log = logging.getLogger("evergreen.dataset")

_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")  # of a file: nothing outside of the version's folder
_LOOK_S = 1.0  # between two looks how much the process that holds a version's lock has downloaded


def files_of(version: DatasetVersion, store: ObjectStore) -> "FileSystem":
    """The uploaded version as a file system of pyarrow, whose root is the version's folder."""
    from pyarrow.fs import SubTreeFileSystem

    return SubTreeFileSystem(prefix(version), store.filesystem())


def publish(version: DatasetVersion, store: ObjectStore) -> DatasetVersion:
    """Upload a version, unless the store has a complete version with this fingerprint; returns the stored version.

    The manifest is written in any case: its time tells `evergreen gc` of another home that the version is in use.
    """
    stored = _complete(version, store)
    if stored is not None:
        _renew(stored, store)
        return stored
    log.info("uploading the dataset to %s", store.url)
    for file in [*digests_by_file(version), MANIFEST]:
        store.put_file(f"{prefix(version)}/{file}", Path(version.path) / file)
    return version


def _complete(version: DatasetVersion, store: ObjectStore) -> DatasetVersion | None:
    """The stored version with all its files; None if the manifest or a file is missing, or the manifest is damaged."""
    keys = set(store.keys(prefix(version)))
    try:
        stored = stored_version(version, store)
    except FileNotFoundError:
        return None
    except DataError as error:
        log.warning("%s The dataset is uploaded again.", error)
        return None
    return stored if {f"{prefix(version)}/{file}" for file in digests_by_file(stored)} <= keys else None


def _renew(stored: DatasetVersion, store: ObjectStore) -> None:
    with temporary_folder("dataset") as folder:
        key = f"{prefix(stored)}/{MANIFEST}"
        try:
            (folder / MANIFEST).write_bytes(store.get(key))
        except FileNotFoundError:  # a worker found damage meanwhile: the next attempt uploads the version
            return
        store.put_file(key, folder / MANIFEST)


def stored_version(version: DatasetVersion, store: ObjectStore) -> DatasetVersion:
    """The version in the store, as its manifest there describes it; the path is that of `version`.

    Raises FileNotFoundError if the store has no manifest of the version: then it is not uploaded, or removed. Raises
    :class:`DataError` if the manifest is damaged, of another version, or names files outside of the version's folder.
    """
    with temporary_folder("dataset") as folder:
        (folder / MANIFEST).write_bytes(store.get(f"{prefix(version)}/{MANIFEST}"))
        stored = _manifest_in(folder, version, store)
    return stored.model_copy(update={"path": version.path})


def _manifest_in(folder: Path, version: DatasetVersion, store: ObjectStore) -> DatasetVersion:
    """Read a manifest from the store that was downloaded to `folder`; raises :class:`DataError` that names its URL."""
    try:
        stored = read_manifest(folder, version.fingerprint)
    except DataError:
        what = "damaged, or of another dataset"
    else:
        foreign = [file for file in digests_by_file(stored) if not _NAME.fullmatch(file)]
        if stored.name == version.name and not foreign:
            return stored
        what = (
            f"names the file {foreign[0]!r}, which Evergreen does not write"
            if foreign
            else "of another recipe"
        )
    raise DataError(f"{store.url}/{prefix(version)}/{MANIFEST}: {what}.")


def folder_in(cache: Path, version: DatasetVersion) -> Path:
    """The folder of a version in a node's cache."""
    return cache / prefix(version)


def fetch(
    version: DatasetVersion, store: ObjectStore, cache: Path, moved: Callable[[int], None] = ignored
) -> DatasetVersion:
    """The version on this node's disk: downloaded to the folder `cache` by the first process that asks, then checked.

    Calls `moved` with each number of bytes transferred or read, also with those that another process downloads while
    this process waits for it.
    Removes older versions of the dataset from the cache, unless a process uses them. Raises :class:`TransientError` if
    files in the store are missing, or not those that the manifest there lists.
    """
    folder = folder_in(cache, version)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder, moved):
        here = _checked(version, folder, moved)
        if here is None:
            remove_folder(folder)
            for left in _unfinished(folder):
                shutil.rmtree(left, ignore_errors=True)
            with atomic_folder(folder) as aside:
                _download(version, store, aside, moved)
            here = read_manifest(folder, version.fingerprint)
        os.utime(folder)
        forget_old(folder)
        return here


def damage(stored: DatasetVersion, store: ObjectStore) -> list[str]:
    """Download each file of a :func:`stored_version`; returns a message for each that is missing or changed."""
    problems = []
    for file, digest in digests_by_file(stored).items():
        key = f"{prefix(stored)}/{file}"
        with temporary_folder("verify") as folder:
            try:
                store.get_file(key, folder / "object")
                whole = digest_file(folder / "object") == digest
                problems += [] if whole else [f"{store.url}/{key}: not the bytes that the manifest lists"]
            except FileNotFoundError:
                problems.append(f"{store.url}/{key}: missing")
    return problems


@contextmanager
def _locked(folder: Path, moved: Callable[[int], None]) -> Iterator[None]:
    """Hold the lock of a version's folder. Calls `moved` with the bytes that another process downloads meanwhile."""
    lock, arrived = FileLock(folder.with_suffix(".lock")), 0
    with suppress(Timeout):
        lock.acquire(blocking=False)
    if not lock.is_locked:
        log.info("waiting for another process that downloads or checks %s", folder)
    while not lock.is_locked:
        with suppress(Timeout):
            lock.acquire(timeout=_LOOK_S)
        now = sum(map(_size, _unfinished(folder)))
        moved(max(0, now - arrived))
        arrived = now
    try:
        yield
    finally:
        lock.release()


def _unfinished(folder: Path) -> list[Path]:
    """The folders into which processes download the version, or did before they were killed."""
    return list(folder.parent.glob(f".{folder.name}.*.tmp"))


def _size(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.rglob("*"))
    except FileNotFoundError:  # the download has just ended
        return 0


def _checked(version: DatasetVersion, folder: Path, moved: Callable[[int], None]) -> DatasetVersion | None:
    if not folder.is_dir():
        return None
    try:
        here = read_manifest(folder, version.fingerprint)
        check_parts(here, moved)
    except DataError as error:
        log.warning("%s The dataset is downloaded again.", error)
        return None
    return here


def _download(
    version: DatasetVersion, store: ObjectStore, folder: Path, moved: Callable[[int], None]
) -> None:
    """Download the files that the manifest in the store lists, and check them; the manifest comes first."""
    file, listed = MANIFEST, b""
    try:
        store.get_file(f"{prefix(version)}/{MANIFEST}", folder / MANIFEST, moved)
        listed = (folder / MANIFEST).read_bytes()
        stored = _manifest_in(folder, version, store)
        for file in digests_by_file(stored):
            (folder / file).parent.mkdir(exist_ok=True)
            store.get_file(f"{prefix(version)}/{file}", folder / file, moved)
        check_parts(stored, moved)
    except FileNotFoundError:
        raise _damaged(version, store, f"{file} is missing", listed) from None
    except DataError as error:
        raise _damaged(version, store, Path(str(error).partition(": ")[0]).name, listed) from error


def _damaged(version: DatasetVersion, store: ObjectStore, what: str, listed: bytes) -> TransientError:
    """The error for a damaged upload. Without its manifest, the next :func:`publish` uploads the dataset again.

    `listed` is the manifest that was read. A manifest that another home has written since stays.
    """
    key = f"{prefix(version)}/{MANIFEST}"
    with suppress(FileNotFoundError):
        if store.get(key) == listed:
            store.delete([key])
    return TransientError(
        f"{store.url}/{prefix(version)}: damaged ({what}). Run the same command again: the driver uploads the dataset "
        "again."
    )
