"""Find the Python files of a package."""

import os
from collections.abc import Iterator
from pathlib import Path


def python_files(folder: Path, _above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """The Python files below `folder`, sorted, also in a linked folder that may be a package: one with Python files.

    A link to a folder above itself is not entered. Hidden names, which no import can name, and links that lead to
    nothing are left out.
    """
    real = os.path.realpath(folder)
    if real in _above:
        return
    try:
        entries = sorted(folder.iterdir())
    except PermissionError:  # Python imports nothing from such a folder, either
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            if not entry.is_symlink() or _may_be_package(entry):
                yield from python_files(entry, _above | {real})
        elif entry.suffix == ".py" and entry.is_file():
            yield entry


def _may_be_package(folder: Path) -> bool:
    """Whether an import can name the folder, and it has Python files: a link may also lead to terabytes of data."""
    return folder.name.isidentifier() and any(folder.glob("*.py"))
