"""A source in an archive: the archive is unpacked once, and again when the unpacked files have changed.

In: an archive that the user named. Out: the source files of the inner source, with the archive as their origin.
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
from training.data.text.tokenizers import digest_of
from training.data.text.tokenizers_found import find_tokenizer
from training.errors import DataError
from training.records import SourceFiles
from training.storage.files import digest_file, digest_json
from training.storage.record_files import DamagedError, read_record, set_aside, write_record

log = logging.getLogger("evergreen.sources")


@dataclass(frozen=True)
class Packed:
    """A source in an archive: `source` reads the files that were unpacked from `archive` to `root`."""

    source: Source
    archive: Path
    root: Path

    def fetch(self, folder: Path) -> SourceFiles:
        """Fetch the inner source; unpack its files again when they have changed since the first fetch."""
        note = self.root.with_name(f"{self.root.name}.json")
        name = digest_json([type(self.source).__name__, _options(self.source)])
        try:
            digests = read_record(note, Digests, self.root.name).root if note.exists() else {}
            files = self._same(folder, digests[name]) if name in digests else self.source.fetch(folder)
        except DamagedError as error:
            set_aside(note, error.what)
            digests, files = {}, None  # without a digest, changes can't be detected
        if files is None:
            log.warning("%s: what was unpacked to %s was changed; unpacked again", self.archive, self.root)
            shutil.rmtree(self.root)
            unpack(self.archive, self.root)
            files = self.source.fetch(folder)
        if digests.get(name) != files.digest:
            write_record(note, Digests(digests | {name: files.digest}), self.root.name)
        return files.model_copy(update={"origin": str(self.archive)})

    def _same(self, folder: Path, digest: str) -> SourceFiles | None:
        """Fetch the inner source; None when its files are damaged or their digest is not `digest`."""
        try:
            files = self.source.fetch(folder)
        except DataError as error:
            log.warning("%s", error)
            return None
        return files if files.digest == digest else None

    def count(self, files: SourceFiles, split: str) -> int:
        """Number of rows of `split` in the inner source."""
        return self.source.count(files, split)

    def splits(self, files: SourceFiles) -> Sequence[str]:
        """The splits of the inner source."""
        return self.source.splits(files)

    def read(self, files: SourceFiles, split: str, rows: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Raw rows of the inner source."""
        return self.source.read(files, split, rows)


def unpacked(archive: Path, folder: Path) -> Path:
    """Unpack `archive` to a folder under `folder` that is named by the archive's digest, unless that folder exists.

    Raises :class:`DataError` as :func:`unpack` does.
    """
    root = folder / "unpacked" / digest_file(archive)[:16]
    if not root.exists():
        log.info("%s: unpacking to %s", archive, root)
        unpack(archive, root)
    return root


def _options(source: Source) -> dict[str, Any]:
    """The options of the inner source except its path, because they may change the digest of its files.

    A tokenizer file counts by its content alone, so that the recipe's folder can be moved.
    """
    options = {name: value for name, value in asdict(cast(Any, source)).items() if name != "path"}
    if isinstance(file := options.get("tokenizer"), Path):
        options["tokenizer"] = digest_of(find_tokenizer(file))
    return options
