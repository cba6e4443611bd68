"""Rows that a job rewrote: without a key they are new rows, so that the split is drawn anew."""

from training.data.differences import differences
from training.errors import DataError
from training.profile_records import Change
from training.records import DatasetVersion
from training.settings.change_limits import ChangeLimits


def replaced_rows(reference: DatasetVersion, current: DatasetVersion, limits: ChangeLimits) -> Change | None:
    """The change that most of the champion's rows vanished and as many others came; None if rows have a key.

    Also None if the champion's rows are not on this machine any more.
    """
    limit = limits.of("identity")
    subsets = [
        None if version.profile is None else version.profile.subset for version in (reference, current)
    ]
    if current.key or reference.transform != current.transform or subsets[0] != subsets[1]:
        return None
    try:
        found = differences(reference, current)
    except DataError:
        return None
    gone = found.removed / max(1, found.removed + found.kept)
    if not found.replaced or gone < limit:
        return None
    remedy = 'Table(key="...") names the column that identifies a row' if current.table is not None else ""
    return Change(
        what="identity",
        reference=f"{found.removed + found.kept:,} rows",
        current=f"{found.kept:,} of them left, {found.added:,} new",
        measure=gone,
        limit=limit,
        effect="hold",
        sentence=f"{found.words()}, so test rows may be rows that the champion learned; {remedy}".removesuffix(
            "; "
        ),
    )
