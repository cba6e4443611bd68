"""Where a source's files lie: what the user named, and where a listing of it is kept."""

import json
from collections.abc import Mapping
from pathlib import Path

from training.errors import DataError, SettingError
from training.files import canonical_json, digest_json, write_text

_CHECKSUMS = "checksums.json"


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
    write_text(folder / _CHECKSUMS, canonical_json(dict(digests)))


def check_unchanged(folder: Path, digests: Mapping[str, str]) -> None:
    """Hold files against the note in `folder`; without a note there is nothing to hold them against.

    Raises :class:`DataError` that names the file which is not what was unpacked.
    """
    note = folder / _CHECKSUMS
    expected = json.loads(note.read_text(encoding="utf-8")) if note.is_file() else {}
    for name, digest in digests.items():
        if expected.get(name, digest) != digest:
            raise DataError(
                f"{folder / name}: changed since it was unpacked. Remove the folder {folder} and run again."
            )
