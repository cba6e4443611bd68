"""The result of a check of an invariant, and the exception for a check that lacks its evidence."""

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import Field

from training.records import Record

_SHOWN = 3


class Finding(Record):
    """The outcome of one check. `ok` is None when it can't be determined; `detail` then says why."""

    invariant: str = Field(description="I1 to I10")
    name: str = Field(description="what was checked, for people")
    ok: bool | None
    detail: str = Field(description="the numbers")


class Outcome(NamedTuple):
    """Result of a check function; :class:`Finding` explains the fields."""

    ok: bool | None
    detail: str


class NoEvidence(Exception):
    """Data that a check needs are missing. `ok` is False when their absence itself breaks the invariant."""

    def __init__(self, reason: str, ok: bool | None = None):
        super().__init__(reason)
        self.ok = ok


def judged(problems: Sequence[str], fine: str) -> Outcome:
    """The outcome of a check: without problems, it holds with the detail `fine`; else it lists the first problems."""
    return Outcome(not problems, few(problems, "; ") if problems else fine)


def few(items: Sequence[object], separator: str = ", ") -> str:
    """Text of the first items, followed by the number of the remaining ones."""
    shown = separator.join(map(str, items[:_SHOWN]))
    return shown if len(items) <= _SHOWN else f"{shown}{separator}and {len(items) - _SHOWN} more"
