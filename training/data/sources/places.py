"""Where a source's files lie: what the user named, and where a listing of it is kept."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import RootModel

from training.errors import DataError, SettingError
from training.storage.files import digest_json
from training.storage.record_files import read_record, write_record

_CHECKSUMS = "checksums.json"
_OWNER = "source"


class Digests(RootModel[dict[str, str]]):
    """sha256 by name."""


def given_path(path: str | Path | None, what: str) -> Path:
    """The absolute path that the user named for `what`.

    Raises :class:`SettingError` when none was named or nothing is there.
    """
    if path is None:
        raise SettingError(
            f"data.path: {what} has no download; set data.path to where it lies on this machine."
        )
    found = Path(path).expanduser().resolve()
    if not found.exists():
        raise SettingError(
            f"data.path: {found} does not exist. Check the spelling, and that the disk is mounted."
        )
    return found


def listing_folder(folder: Path, source: Path, digest: str) -> Path:
    """Folder under `folder` for what was found out about the files at `source` with content `digest`.

    Both are in the name: the same content at two places has two listings, each with its own paths.
    """
    return folder / "listings" / digest_json([str(source), digest])[:16]


def write_checksums(folder: Path, digests: Mapping[str, str]) -> None:
    """Note the sha256 of files just unpacked into `folder`, by name."""
    write_record(folder / _CHECKSUMS, Digests(dict(digests)), _OWNER)


def check_unchanged(folder: Path, digests: Mapping[str, str]) -> None:
    """Hold files against the note in `folder`; without a note there is nothing to hold them against.

    Raises :class:`DataError` that names the file which is not what was unpacked, or the note when that is damaged.
    """
    note = folder / _CHECKSUMS
    remedy = f"Remove the folder {folder} and run again."
    expected = read_record(note, Digests, _OWNER, remedy).root if note.exists() else {}
    for name, digest in digests.items():
        if expected.get(name, digest) != digest:
            raise DataError(f"{folder / name}: changed since it was unpacked. {remedy}")
