"""Rows that a job rewrote, and rows whose classes it exchanged; found by comparing the rows themselves."""

from collections.abc import Iterator

from training.data.differences import Differences, differences
from training.data.profiles.wording import percent
from training.errors import DataError
from training.profile_records import Change
from training.records import DatasetVersion
from training.settings.change_limits import ChangeLimits

_ROWS = 20  # of fewer rows, a person may well have corrected all classes


def row_changes(reference: DatasetVersion, current: DatasetVersion, limits: ChangeLimits) -> Iterator[Change]:
    """The changes that most rows were replaced, or that most rows that stayed are of another class.

    None if the champion's rows are not on this machine any more, or were chosen by other settings.
    """
    subsets = [
        None if version.profile is None else version.profile.subset for version in (reference, current)
    ]
    if reference.transform != current.transform or subsets[0] != subsets[1]:
        return
    try:
        found = differences(reference, current)
    except DataError:
        return
    yield from _replaced(found, current, limits.of("identity"))
    yield from _relabelled(found, limits.of("labels"))


def _replaced(found: Differences, current: DatasetVersion, limit: float) -> Iterator[Change]:
    """Without a key, rewritten rows are new rows, so that the split is drawn anew."""
    gone = found.removed / max(1, found.removed + found.kept)
    if not found.replaced or gone < limit:
        return
    remedy = '; Table(key="...") names the column that identifies a row' if current.table is not None else ""
    yield Change(
        what="identity",
        reference=f"{found.removed + found.kept:,} rows",
        current=f"{found.kept:,} of them left, {found.added:,} new",
        measure=gone,
        limit=limit,
        effect="hold",
        sentence=f"{found.words()}, so test rows may be rows that the champion learned{remedy}",
    )


def _relabelled(found: Differences, limit: float) -> Iterator[Change]:
    """Classes that are exchanged in all rows leave each row, and maybe the shares of the classes, as they were."""
    share = found.relabelled / max(1, found.kept)
    if found.kept < _ROWS or share <= limit:
        return
    yield Change(
        what="labels",
        reference=f"{found.kept:,} {found.unit}s",
        current=f"{found.relabelled:,} of them of another class",
        measure=share,
        limit=limit,
        effect="hold",
        sentence=f"{percent(share)} of the {found.unit}s that were there before are of another class: were labels "
        "exchanged?",
    )
