"""A source that came in an archive: unpacked once for its content, and unpacked anew when that was changed since.

In: an archive that the user named. Out: what the source inside gives, said to come from the archive.
"""

import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from training.data.sources import Source
from training.data.sources.archives import unpack
from training.data.sources.places import Digests
from training.errors import DataError
from training.records import SourceFiles
from training.storage.files import digest_file, digest_json
from training.storage.record_files import DamagedError, read_record, set_aside, write_record

log = logging.getLogger("evergreen.sources")


@dataclass(frozen=True)
class Packed:
    """`source` reads what was unpacked from `archive` to `place`."""

    source: Source
    archive: Path
    place: Path

    def fetch(self, folder: Path) -> SourceFiles:
        """What the source inside finds; the digest of its first fetch tells whether its files are still the same."""
        note = self.place.with_name(f"{self.place.name}.json")
        name = digest_json([type(self.source).__name__, _options(self.source)])
        try:
            digests = read_record(note, Digests, self.place.name).root if note.exists() else {}
            files = self._same(folder, digests[name]) if name in digests else self.source.fetch(folder)
        except DamagedError as error:
            set_aside(note, error.what)
            digests, files = {}, None  # nothing tells whether the files are still the same
        if files is None:
            log.warning("%s: what was unpacked to %s was changed; unpacked anew", self.archive, self.place)
            shutil.rmtree(self.place)
            unpack(self.archive, self.place)
            files = self.source.fetch(folder)
        if digests.get(name) != files.digest:
            write_record(note, Digests(digests | {name: files.digest}), self.place.name)
        return files.model_copy(update={"origin": str(self.archive)})

    def _same(self, folder: Path, digest: str) -> SourceFiles | None:
        """What the source inside finds, if it is what it found first."""
        try:
            files = self.source.fetch(folder)
        except DataError as error:
            log.warning("%s", error)
            return None
        return files if files.digest == digest else None

    def count(self, files: SourceFiles, split: str) -> int:
        """As the source inside."""
        return self.source.count(files, split)

    def splits(self, files: SourceFiles) -> Sequence[str]:
        """As the source inside."""
        return self.source.splits(files)

    def read(self, files: SourceFiles, split: str, rows: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """As the source inside."""
        return self.source.read(files, split, rows)


def unpacked(archive: Path, folder: Path) -> Path:
    """Folder under `folder` with what `archive` holds; named by its content. Raises what :func:`unpack` raises."""
    place = folder / "unpacked" / digest_file(archive)[:16]
    if not place.exists():
        log.info("%s: unpacking to %s", archive, place)
        unpack(archive, place)
    return place


def _options(source: Source) -> dict[str, Any]:
    """What the source inside was told besides its place: it may count for the digest."""
    return {name: value for name, value in asdict(cast(Any, source)).items() if name != "path"}
