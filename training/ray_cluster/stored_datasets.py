"""Dataset versions in an object store: uploaded by the driver, downloaded once by each node with workers.

A version's objects have the same keys as its files under `datasets/`: a version is named by its fingerprint and never
changes, so two drivers upload the same bytes. The manifest is uploaded last.
"""

import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from training.checkpoints.opening import prefix_of_dataset as prefix
from training.data.manifest import MANIFEST, check_parts, read_manifest
from training.data.manifest import files_of as files_in
from training.errors import DataError, ResourceError, TransientError
from training.records import DatasetVersion
from training.storage.files import atomic_folder, digest_file, remove_folder, temporary_folder
from training.storage.objects.base import ObjectStore, ignored

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

log = logging.getLogger("evergreen.dataset")

_KEPT = 2  # versions of a dataset that a node keeps


def files_of(version: DatasetVersion, store: ObjectStore) -> "FileSystem":
    """The uploaded version as a file system of pyarrow, whose root is the version's folder."""
    from pyarrow.fs import SubTreeFileSystem

    return SubTreeFileSystem(prefix(version), store.filesystem())


def publish(version: DatasetVersion, store: ObjectStore) -> None:
    """Upload a version, unless the store has this version.

    The manifest is uploaded in any case: its time tells `evergreen gc` of another home that the version is in use.
    """
    keys = set(store.keys(prefix(version)))
    files = [*files_in(version), MANIFEST]
    if {f"{prefix(version)}/{file}" for file in files} <= keys:
        files = [MANIFEST]
    else:
        log.info("uploading the dataset to %s", store.url)
    for file in files:
        store.put_file(f"{prefix(version)}/{file}", Path(version.path) / file)


def fetch(
    version: DatasetVersion, store: ObjectStore, cache: Path, moved: Callable[[int], None] = ignored
) -> DatasetVersion:
    """The version on this node's disk: downloaded to the folder `cache` by the first process that asks, then checked.

    Removes older versions of the dataset from the cache. Raises :class:`TransientError` if files in the store are
    missing, or not those that the manifest lists.
    """
    folder = cache / prefix(version)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        here = _checked(version, folder)
        if here is None:
            remove_folder(folder)
            for left in folder.parent.glob(f".{folder.name}.*.tmp"):  # of a killed process
                shutil.rmtree(left, ignore_errors=True)
            with atomic_folder(folder) as aside:
                _download(version, store, aside, moved)
            here = read_manifest(folder, version.fingerprint)
        os.utime(folder)
        _forget_old(folder)
        return here


def damage(version: DatasetVersion, store: ObjectStore) -> list[str]:
    """Download each file of an uploaded version; returns a message for each that is missing or changed.

    Raises FileNotFoundError if the store has no manifest of the version: then it is not uploaded, or removed.
    """
    store.get(f"{prefix(version)}/{MANIFEST}")
    problems = []
    for file, digest in files_in(version).items():
        key = f"{prefix(version)}/{file}"
        with temporary_folder("verify") as folder:
            try:
                store.get_file(key, folder / "object")
                whole = digest_file(folder / "object") == digest
                problems += [] if whole else [f"{store.url}/{key}: not the bytes that the manifest lists"]
            except FileNotFoundError:
                problems.append(f"{store.url}/{key}: missing")
    return problems


def _checked(version: DatasetVersion, folder: Path) -> DatasetVersion | None:
    if not folder.is_dir():
        return None
    try:
        here = read_manifest(folder, version.fingerprint)
        check_parts(here)
    except DataError as error:
        log.warning("%s The dataset is downloaded again.", error)
        return None
    return here


def _download(
    version: DatasetVersion, store: ObjectStore, folder: Path, moved: Callable[[int], None]
) -> None:
    for file in [*files_in(version), MANIFEST]:
        (folder / file).parent.mkdir(exist_ok=True)
        try:
            store.get_file(f"{prefix(version)}/{file}", folder / file, moved)
        except FileNotFoundError:
            raise _damaged(version, store, f"{file} is missing") from None
    try:
        check_parts(read_manifest(folder, version.fingerprint).model_copy(update={"path": str(folder)}))
    except DataError as error:
        raise _damaged(version, store, Path(str(error).partition(":")[0]).name) from error


def _damaged(version: DatasetVersion, store: ObjectStore, what: str) -> TransientError:
    """The error for a damaged upload. Without its manifest, the next :func:`publish` uploads the dataset again."""
    store.delete([f"{prefix(version)}/{MANIFEST}"])
    return TransientError(
        f"{store.url}/{prefix(version)}: damaged ({what}). Run the same command again: the driver uploads the dataset "
        "again."
    )


def _forget_old(newest: Path) -> None:
    """Remove all but the versions used last. Processes that still read a removed version keep its open files."""
    versions = [path for path in newest.parent.iterdir() if path.is_dir() and not path.name.startswith(".")]
    for path in sorted(versions, key=lambda path: path.stat().st_mtime, reverse=True)[_KEPT:]:
        remove_folder(path)


def node_cache(chosen: str | None) -> Path:
    """The folder for downloaded datasets on this node: `chosen`, or one of this user among the temporary files.

    Raises :class:`ResourceError` if other users may write to that folder.
    """
    if chosen is not None:
        folder = Path(chosen).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    folder = Path(tempfile.gettempdir()) / f".evergreen-datasets-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ResourceError(
            f"{folder}: other users may write to it. Remove it, or set storage.node_cache to another folder."
        )
    return folder
