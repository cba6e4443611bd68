"""Rows that can't be read or converted: they are left out, or an error above a share of `data.max_dropped_share`."""

import csv
import logging
from collections.abc import Sequence
from pathlib import Path

from training.data.preparation.shards import ShardOutcome
from training.data.sources.wording import counted
from training.errors import DataError
from training.storage.files import atomic_file

log = logging.getLogger("evergreen.prepare")

_SHOWN = 5


def check_bad_rows(outcomes: Sequence[ShardOutcome], limit: float, listing: Path | None) -> None:
    """Log each bad row as left out. Raises :class:`DataError` when the share of bad rows is above `limit`.

    The error names the first 5 bad rows; when there are more, all are written to the CSV file `listing`, if given.
    """
    bad = [row for outcome in outcomes for row in outcome.bad]
    kept = sum(sum(counts) for outcome in outcomes for counts in outcome.label_counts.values())
    share = len(bad) / max(1, kept + len(bad))
    if share <= limit:
        for row in bad:
            log.warning("row left out: %s", row)
        return
    shown = "\n  ".join(bad[:_SHOWN])
    if len(bad) > _SHOWN:
        shown += f"\n  and {len(bad) - _SHOWN} more"
        if listing is not None:
            _write(listing, bad)
            shown += f", all listed in {listing}"
    raise DataError(
        f"{len(bad)} of {counted(kept + len(bad), 'row')} can't be used:\n  {shown}\n"
        f"Repair or remove {'it' if len(bad) == 1 else 'them'}, or leave them out by setting data.max_dropped_share "
        f"above {share:.4g} (now {limit:.4g})."
    )


def _write(file: Path, bad: Sequence[str]) -> None:
    with atomic_file(file) as aside, aside.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["row and reason"])
        writer.writerows([row] for row in bad)
