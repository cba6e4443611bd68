"""The manifest of a dataset version: write it, read it, and check the part files against it.

In: a version's folder. Out: the version, or its rows, after every byte was checked. Fails with a DataError that names
the first file which is missing, changed or not listed in the manifest.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from training.errors import DataError
from training.records import DatasetVersion, PartFile, Split
from training.storage.files import digest_file, digest_json, write_text

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"  # of a dataset of text
_DIGEST = "sha256_of_the_rest"  # a field of the manifest
_THREADS = min(8, os.cpu_count() or 1)  # hashing releases the global interpreter lock (GIL)


def write_manifest(version: DatasetVersion, folder: Path) -> None:
    """Write the manifest of the files in `folder`. Call it last: the manifest makes the folder a dataset version."""
    content = version.model_dump(mode="json")
    write_text(folder / MANIFEST, json.dumps(content | {_DIGEST: digest_json(content)}, indent=1))


def read_manifest(folder: Path, identity: str) -> DatasetVersion:
    """The dataset version that `folder` holds, with the fingerprint `identity`; its part files are not checked.

    Raises :class:`DataError` when the manifest is missing, damaged, or belongs to another dataset version.
    """
    manifest = folder / MANIFEST
    try:
        content = dict(json.loads(manifest.read_bytes()))
        whole = content.pop(_DIGEST, None) == digest_json(content)
        version = DatasetVersion.model_validate({**content, "path": str(folder)})
    except (FileNotFoundError, IsADirectoryError):
        raise DataError(f"{manifest}: missing, so its folder is no dataset.") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{manifest}: damaged ({type(error).__name__}).") from error
    if not whole or version.fingerprint != identity:
        raise DataError(f"{manifest}: damaged, or of another dataset.")
    return version


def check_parts(version: DatasetVersion, moved: Callable[[int], None] = lambda _: None) -> None:
    """Hash all part files and compare them with the manifest; threads call `moved` with each number of bytes read.

    Raises :class:`DataError` that names a part file which is missing, changed, or not listed in the manifest.
    """
    root = Path(version.path)
    parts = [part for split in version.parts.values() for part in split]
    listed = {root / part.path for part in parts}
    for file in sorted(file for split in version.parts for file in (root / split).glob("[!.]*.parquet")):
        if file not in listed:
            raise DataError(f"{file}: not among the files that the manifest lists.")
    if version.text is not None and _digest(root / TOKENIZER) != version.text.tokenizer:
        raise DataError(_unlike(root / TOKENIZER))
    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(lambda part: _check_part(root, part, moved), parts):
            pass


def files_of(version: DatasetVersion) -> dict[str, str]:
    """The files of a dataset version besides its manifest: sha256 by path, relative to the version's folder."""
    parts = {part.path: part.sha256 for split in version.parts.values() for part in split}
    return parts if version.text is None else {**parts, TOKENIZER: version.text.tokenizer}


def _digest(file: Path) -> str:
    return digest_file(file) if file.is_file() else ""


def _check_part(root: Path, part: PartFile, moved: Callable[[int], None]) -> None:
    file = root / part.path
    if not file.is_file() or file.stat().st_size != part.bytes or digest_file(file, moved) != part.sha256:
        raise DataError(_unlike(file))


def _unlike(file: Path) -> str:
    return f"{file}: missing or not the bytes that the manifest lists."


def _content(file: Path) -> pa.Buffer:
    """A file's bytes, in a buffer of Arrow's memory pool, which reuses freed memory.

    Reading into newly allocated memory takes several times as long.
    """
    buffer = pa.allocate_buffer(file.stat().st_size)
    missing = memoryview(buffer)
    with file.open("rb", buffering=0) as stream:
        while count := stream.readinto(missing):  # Linux reads at most 2 GiB at once
            missing = missing[count:]
    return buffer


def read_parts(version: DatasetVersion, split: Split, columns: list[str]) -> Iterator[pa.Table]:
    """Tables of the part files in order, parsed from the same bytes whose sha256 was checked against the manifest.

    Memory use is one part file. Raises :class:`DataError` that names the damaged file.
    """
    for part in version.parts[split]:
        file = Path(version.path) / part.path
        content = _content(file) if file.is_file() and file.stat().st_size == part.bytes else b""
        if hashlib.sha256(memoryview(content)).hexdigest() != part.sha256:
            raise DataError(f"{_unlike(file)} Run the same command again: the dataset is prepared again.")
        with pq.ParquetFile(pa.BufferReader(content)) as parquet:
            yield parquet.read(columns)
