"""What garbage collection removes: records of the removals, and how folders are removed and measured."""

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import Field

from training.records import Record
from training.storage.files import remove_folder
from training.storage.paths import Home

Kind = Literal[
    "run",
    "search",
    "checkpoints",
    "dataset",
    "raw rows",
    "version",
    "lock",
    "Ray session",
    "temporary files",
    "cached dataset",
    "stored run",
    "stored uploads",
    "stored checkpoints",
    "stored dataset",
]


class Removal(Record):
    """Something to remove: a folder, objects in a store, or a version or lock in the registry (`bytes` is 0)."""

    recipe: str = Field(description="empty for a folder outside of the home")
    kind: Kind
    name: str = Field(
        description="path below the home, model and version, model and tag, URL in a store, or a whole path"
    )
    bytes: int
    why: str
    tracking_uri: str = Field(
        "", description="of a version: MLflow's address; empty for the home's own store"
    )


class Collection(Record):
    """The removals of `collect`, done or planned.

    `left_alone` has the reason for each recipe that was left alone, maybe in part, and `failed` the error for each
    recipe (or "" for folders outside of the home) of which something could not be removed, as on a full or read-only
    disk, or without permission.
    """

    removals: tuple[Removal, ...]
    left_alone: dict[str, str]
    failed: dict[str, str] = Field({})


PlannedRemoval = tuple[Removal, Callable[[], None]]  # a removal, and the function that does it


def folder_removal(home: Home, recipe: str, kind: Kind, folder: Path, why: str) -> PlannedRemoval:
    """The removal of a folder of the home, with its size, for :class:`Removal`."""
    name = folder.relative_to(home.root).as_posix()
    removal = Removal(recipe=recipe, kind=kind, name=name, bytes=size_of(folder), why=why)
    return removal, partial(remove_folder, folder, strict=True)


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder, also of a folder in which processes still write."""
    # Unlike Path.rglob, os.walk ignores a folder that another process removes meanwhile.
    return sum(_file_size(Path(parent) / name) for parent, _, names in os.walk(folder) for name in names)


def _file_size(file: Path) -> int:
    """Bytes of a file; 0 for anything else, and for a file that its writer removes meanwhile."""
    with suppress(FileNotFoundError):
        status = file.stat()
        return status.st_size if stat.S_ISREG(status.st_mode) else 0
    return 0
