"""Keeps the user's folders that have the names of Evergreen's packages off the import path of Ray's workers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training.recipe_sources import OWN_PACKAGES

_ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def without_other_packages() -> Iterator[None]:
    """Run the block, which starts Ray or connects to Ray, in a working directory without such folders.

    Ray puts the working directory that the driver has at `ray.init` before all others on the import path of each
    worker. If Python would import one of Evergreen's packages from there, the block runs in Evergreen's own folder;
    workers that Ray starts then keep that working directory.
    """
    before = Path.cwd()
    if before == _ROOT or not any(_is_package(before / name) for name in OWN_PACKAGES):
        yield
        return
    os.chdir(_ROOT)
    try:
        yield
    finally:
        os.chdir(before)


def _is_package(path: Path) -> bool:
    # A folder without __init__.py is a package only if no other folder on the import path is one; Evergreen's are.
    return (path / "__init__.py").is_file() or path.with_suffix(".py").is_file()
