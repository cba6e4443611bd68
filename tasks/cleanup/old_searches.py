"""Find searches of a recipe that nothing needs: their trials are removed, or they have not changed for 30 days.

The record of a search says which trials ended early. Without it, the same command reuses the finished trials and trains
the others to the end.
"""

import time
from collections.abc import Iterator, Set
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tasks.cleanup.stored_objects import ABANDONED_AFTER_S
from training.search.planning import RECORD
from training.search.records import Search
from training.storage.paths import Home, is_key_name
from training.storage.record_files import find_record


class OldSearch(NamedTuple):
    """The folder of a search that nothing needs, and the reason."""

    folder: Path
    why: str


def old_searches(home: Home, recipe: str, removed: Set[Path]) -> Iterator[OldSearch]:
    """Find searches to remove; `removed` are the folders of the runs that are being removed, too.

    A damaged record is named in a warning; its search is kept for 30 days.
    """
    for folder in sorted(
        path for path in home.searches(recipe).glob("*") if path.is_dir() and is_key_name(path.name)
    ):
        days = (time.time() - _last_change(folder)) / 86400
        if days * 86400 > ABANDONED_AFTER_S:
            yield OldSearch(folder, f"no change for {days:.0f} days")
        elif (search := find_record(folder / RECORD, Search, folder.name)) is not None:
            runs = [home.run(recipe, trial.run_key).root for trial in search.trials]
            if not any(run.is_dir() and run not in removed for run in runs):
                yield OldSearch(folder, "the runs of all its trials are removed")


def _last_change(folder: Path) -> float:
    """When the folder or a file in it was changed last, in seconds since 1970."""
    newest = 0.0
    for file in (folder, *folder.glob("*")):
        with suppress(FileNotFoundError):  # a file that its writer replaces meanwhile
            newest = max(newest, file.stat().st_mtime)
    return newest
