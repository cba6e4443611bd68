"""Definition of a row: its sides, the claims that compare them, and the goals."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

Size = Literal["full", "quick", "tiny"]
Number = TypeVar("Number", int, float)
Series = float | list[float]


class DisagreementError(Exception):
    """The sides of a row did not do the same work."""


@dataclass(frozen=True)
class Place:
    """Folders and size of one run: `shared` is common to all runs of the row; `own` is this run's alone, and empty.

    `data` is common to all rows. `size` sets the amount of work; ratios depend little on it. `hooks` says whether
    Evergreen uses its hooks into Ray.
    """

    data: Path
    shared: Path
    own: Path
    size: Size
    hooks: bool = True

    def pick(self, full: Number, quick: Number, tiny: Number) -> Number:
        """Choose the number for this size."""
        return {"full": full, "quick": quick, "tiny": tiny}[self.size]


@dataclass(frozen=True)
class Outcome:
    """What a side measured, by name, and facts about the work that it did, which must agree between sides.

    A list of numbers is averaged: everything that one process measures counts as one observation.
    """

    values: Mapping[str, Series]
    did: dict[str, Any] = field(default_factory=dict)


def quotient(a: float, b: float) -> float:
    """The default comparison: a / b."""
    return a / b


@dataclass(frozen=True)
class Claim:
    """One line of the results: `compare` applied to value `of` of side `a` and the value of side `b`.

    `goal` is a lower bound of the comparison (`at_least`) or an upper bound. Pairs are averaged geometrically, or
    arithmetically if `geometric` is False: for differences, exponents and absolute values.
    """

    id: str
    title: str
    of: str
    unit: str
    goal: float | None
    at_least: bool
    a: str = "a"
    b: str = "b"
    compare: Callable[[float, float], float] = quotient
    geometric: bool = True
    of_b: str | None = None
    note: str = ""

    @property
    def key_b(self) -> str:
        """Name of the value of side `b`; by default the same as for side `a`."""
        return self.of_b or self.of


@dataclass(frozen=True)
class Row:
    """A measurement: programs that run in alternation, and the claims that compare them.

    `same` names the facts (`Outcome.did`) that must be equal between the sides; `close` names the facts that must
    agree within a fraction.
    """

    id: str
    sides: Mapping[str, Callable[[Place], Outcome]]
    claims: tuple[Claim, ...]
    prepare: Callable[[Place], None] = lambda _: None
    same: tuple[str, ...] = ()
    close: Mapping[str, float] = field(default_factory=dict)
    pairs: int = 5
    warm_up: bool = True
    quick: bool = False
    threads: int = 1
    timeout_s: float = 600.0
    unavailable: Callable[[Size], str] = lambda _: ""


def check_agreement(row: Row, did: Mapping[str, Mapping[str, Any]]) -> None:
    """Compare the work of all sides. Raises :class:`DisagreementError` if the sides did not do the same work."""
    for name in row.same:
        seen = {side: done[name] for side, done in did.items() if name in done}
        if len({repr(value) for value in seen.values()}) != 1:
            raise DisagreementError(f"{row.id}: {name} differs or is missing: {seen}")
    for name, share in row.close.items():
        numbers = {side: float(done[name]) for side, done in did.items() if name in done}
        if not numbers or max(numbers.values()) - min(numbers.values()) > share * max(
            map(abs, numbers.values())
        ):
            raise DisagreementError(f"{row.id}: {name} differs by more than {share:.0%}: {numbers}")
