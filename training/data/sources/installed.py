"""Data files that are installed with scikit-learn."""

import gzip
import importlib.util
import zlib
from pathlib import Path

from training.errors import DataError


def installed_file(name: str) -> Path:
    """Path of one of scikit-learn's data files. Raises :class:`DataError` when it is missing."""
    # Not imported: importing scikit-learn takes longer than all the rest of a run in which nothing changed.
    spec = importlib.util.find_spec("sklearn")
    locations = (spec.submodule_search_locations if spec else None) or ()
    for location in locations:
        file = Path(location) / "datasets" / "data" / name
        if file.is_file():
            return file
    raise DataError(
        f"{name} is not where scikit-learn keeps it. Install scikit-learn again, or set data.path."
    )


def content_of(file: Path) -> bytes:
    """Content of one of these files, unpacked if it ends in `.gz`. Raises :class:`DataError` when it is damaged."""
    try:
        content = file.read_bytes()
        content = gzip.decompress(content) if file.suffix == ".gz" else content
        if not content:
            raise EOFError("no rows")
        return content
    except FileNotFoundError as error:
        raise DataError(f"{file}: missing. Install scikit-learn again.") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{file}: damaged ({error}). Install scikit-learn again.") from error
