"""Rows that can't be read or converted: they are left out, or an error above a share of `data.max_dropped_share`."""

import csv
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from training.data.sources.wording import counted
from training.errors import DataError
from training.records import PartFile, Split
from training.storage.files import atomic_file

log = logging.getLogger("evergreen.prepare")

_SHOWN = 5  # in an error
_LOGGED = 20


class Outcome(Protocol):
    """The part files of a shard by split, and the location and the reason of each row that can't be used."""

    @property
    def parts(self) -> dict[Split, PartFile]:
        """Part files with at least one row."""

    @property
    def bad(self) -> tuple[str, ...]:
        """Rows that can't be used."""


def check_bad_rows(outcomes: Sequence[Outcome], limit: float, listing: Path | None) -> None:
    """Log the first bad rows as left out. Raises :class:`DataError` when the share of bad rows is above `limit`.

    The error names the first 5 bad rows; when there are more, all are written to the CSV file `listing`, if given.
    """
    bad = [row for outcome in outcomes for row in outcome.bad]
    rows = len(bad) + sum(part.rows for outcome in outcomes for part in outcome.parts.values())
    if not too_many(len(bad), rows, limit):
        for row in bad[:_LOGGED]:
            log.warning("row left out: %s", row)
        if len(bad) > _LOGGED:
            log.warning(
                "%d more rows left out, all listed in the dataset's manifest.json", len(bad) - _LOGGED
            )
        return
    raise refuse_rows(bad, rows, limit, listing)


def too_many(bad: int, rows: int, limit: float) -> bool:
    """Whether `bad` of `rows` rows are a share above `limit`."""
    return bad / max(1, rows) > limit


def refuse_rows(bad: Sequence[str], rows: int, limit: float, listing: Path | None) -> DataError:
    """The error to raise when `bad`, of `rows` rows, are too many. It names the first 5 bad rows.

    When there are more, all are written to the CSV file `listing`, if given.
    """
    share = len(bad) / rows
    shown = "\n  ".join(bad[:_SHOWN])
    if len(bad) > _SHOWN:
        shown += f"\n  and {len(bad) - _SHOWN} more"
        if listing is not None:
            _write(listing, bad)
            shown += f", all listed in {listing}"
    return DataError(
        f"{len(bad)} of {counted(rows, 'row')} can't be used:\n  {shown}\n"
        f"Repair or remove {'it' if len(bad) == 1 else 'them'}, or leave them out by setting data.max_dropped_share "
        f"above {share:.4g} (now {limit:.4g})."
    )


def _write(file: Path, bad: Sequence[str]) -> None:
    with atomic_file(file) as aside, aside.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["row and reason"])
        writer.writerows([row] for row in bad)
