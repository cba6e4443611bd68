"""What a row is: its sides, what is compared between them, and the goal."""

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
    """Where a side works: `shared` belongs to the row's whole measurement, `own` is this run's alone and empty.

    `data` is shared by all rows. `size` says how much work is done; ratios do not depend on it by much.
    """

    data: Path
    shared: Path
    own: Path
    size: Size

    def pick(self, full: Number, quick: Number, tiny: Number) -> Number:
        """The number for this size."""
        return {"full": full, "quick": quick, "tiny": tiny}[self.size]


@dataclass(frozen=True)
class Outcome:
    """What a side measured, by name, and what it did, by which the sides are held against each other.

    The numbers of a list are averaged: all that one process measures is one observation.
    """

    values: Mapping[str, Series]
    did: dict[str, Any] = field(default_factory=dict)


def quotient(a: float, b: float) -> float:
    """The usual comparison."""
    return a / b


@dataclass(frozen=True)
class Claim:
    """One line of the results: value `of` of side `a` held against that of side `b` by `compare`.

    `goal` bounds the comparison from below (`at_least`) or from above. With `geometric` unset, pairs are averaged
    arithmetically: for differences, exponents and absolute values.
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
        """Name of the value of side `b`; that of side `a` unless said otherwise."""
        return self.of_b or self.of


@dataclass(frozen=True)
class Row:
    """A measurement: programs in alternation, and the claims that follow from them.

    `same` names what the sides did that has to be equal, `close` what has to agree within a share. `noise_matters`
    is unset where a side has no twin to be compared with.
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
    """Hold what the sides did against each other. Raises :class:`DisagreementError`."""
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
