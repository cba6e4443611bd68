"""Paths of a source: the path that the user gave, the folder for its listing, and checksums of unpacked files."""

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from pathlib import Path

from pydantic import RootModel

from training.data.sources import Source
from training.errors import DataError, SettingError
from training.storage.files import digest_json
from training.storage.given_paths import expanded, named
from training.storage.record_files import read_record, write_record

_CHECKSUMS = "checksums.json"
_OWNER = "source"


class Digests(RootModel[dict[str, str]]):
    """sha256 digests by file name."""


def given_path(path: str | Path | None, what: str, origin: str = "recipe") -> Path:
    """The absolute path that the user gave for a source.

    In messages, `what` names the source, and `origin` where the path is given: the recipe, or the setting data.path.

    Raises :class:`SettingError` when the user gave no path, or nothing exists at the path.
    """
    if path is None:
        raise SettingError(
            f"data.path: {what} has no download; set data.path to where it lies on this machine."
        )
    absolute_path = named(path, origin)
    if not absolute_path.exists():
        raise SettingError(
            f"{origin}: the path of {what}, {absolute_path}, does not exist. "
            "Check the spelling, and that the disk is mounted."
        )
    return absolute_path


def beside(source: Source, folder: Path) -> Source:
    """The source of a recipe in `folder`: its `path`, if that is relative, is relative to `folder`.

    A source with a method `beside` does this itself. Sources without a path are returned as they are.
    """
    if own := getattr(source, "beside", None):
        changed: Source = own(folder)
        return changed
    path = getattr(source, "path", None)
    if not is_dataclass(source) or isinstance(source, type) or path is None:
        return source
    return replace(source, path=folder / expanded(path, f"{type(source).__name__}(path=...)"))


def listing_folder(folder: Path, source: Path, digest: str) -> Path:
    """Folder under `folder` for the listing or index of the files at `source` with content `digest`.

    Its name depends on both path and digest: the same content at two paths has two listings, each with its own paths.
    """
    return folder / "listings" / digest_json([str(source), digest])[:16]


def write_checksums(folder: Path, digests: Mapping[str, str]) -> None:
    """Record the sha256 of files that were just unpacked into `folder`, by file name."""
    write_record(folder / _CHECKSUMS, Digests(dict(digests)), _OWNER)


def check_unchanged(folder: Path, digests: Mapping[str, str]) -> None:
    """Compare the digests of files with those that :func:`write_checksums` recorded in `folder`.

    A folder without recorded checksums passes. Raises :class:`DataError` that names a file which changed since it was
    unpacked, or the file of checksums when that is damaged.
    """
    note = folder / _CHECKSUMS
    remedy = f"Remove the folder {folder} and run again."
    expected = read_record(note, Digests, _OWNER, remedy).root if note.exists() else {}
    for name, digest in digests.items():
        if expected.get(name, digest) != digest:
            raise DataError(f"{folder / name}: changed since it was unpacked. {remedy}")
