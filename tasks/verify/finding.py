"""What a check of an invariant says, and how it says that there is nothing to look at."""

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import Field

from training.records import Record

_SHOWN = 3


class Finding(Record):
    """The outcome of one check. `ok` is None where it can't be told; `detail` then says why."""

    invariant: str = Field(description="I1 to I10")
    name: str = Field(description="what was checked, for people")
    ok: bool | None
    detail: str = Field(description="the numbers")


class Outcome(NamedTuple):
    """What a check found out."""

    ok: bool | None
    detail: str


class NoEvidence(Exception):
    """What a check needs is not there. `ok` is False when its absence itself breaks the invariant."""

    def __init__(self, reason: str, ok: bool | None = None):
        super().__init__(reason)
        self.ok = ok


def judged(problems: Sequence[str], fine: str) -> Outcome:
    """Broken when there is any problem; the first ones are told."""
    return Outcome(not problems, few(problems, "; ") if problems else fine)


def few(items: Sequence[object], separator: str = ", ") -> str:
    """The first items, and how many more there are."""
    shown = separator.join(map(str, items[:_SHOWN]))
    return shown if len(items) <= _SHOWN else f"{shown}{separator}and {len(items) - _SHOWN} more"
