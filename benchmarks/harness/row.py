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
class Workspace:
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
    arithmetically if `geometric` is False: for differences, exponents and absolute values. `counted` names a value of
    side `a` whose sum over all runs the line's note states, such as `kills`.
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
    counted: str = ""

    @property
    def key_b(self) -> str:
        """Name of the value of side `b`; by default the same as for side `a`."""
        return self.of_b or self.of


@dataclass(frozen=True)
class Score:
    """How well the models of all sides must do: means over all runs agree within `share` and are at least `least`."""

    share: float
    least: float


@dataclass(frozen=True)
class Row:
    """A measurement: programs that run in alternation, and the claims that compare them.

    `same` names the facts (`Outcome.did`) that must be equal between the sides; `close` names the facts that must
    agree within a fraction. Each side must have each of these facts, except those that `optional` names, which two
    sides must have. `scores` names facts that are compared in full size alone, because a few steps teach a model
    nothing. `others` names the sides that are not this version of Evergreen: a failed run of any other side makes the
    side's claims missed. `packages` are the packages, beside those of every row, on which the numbers depend.
    """

    id: str
    sides: Mapping[str, Callable[[Workspace], Outcome]]
    claims: tuple[Claim, ...]
    prepare: Callable[[Workspace], None] = lambda _: None
    same: tuple[str, ...] = ()
    close: Mapping[str, float] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    scores: Mapping[str, Score] = field(default_factory=dict)
    others: tuple[str, ...] = ("b",)
    packages: tuple[str, ...] = ()
    pairs: int = 5
    warm_up: bool = True
    quick: bool = False
    threads: int = 1
    timeout_s: float = 600.0
    unavailable: Callable[[Size], str] = lambda _: ""


def check_agreement(row: Row, did: Mapping[str, Mapping[str, Any]]) -> None:
    """Compare the work of the sides that ended. Raises :class:`DisagreementError` if they did not do the same work."""
    for name in row.same:
        seen = _facts(row, name, did)
        if len({repr(value) for value in seen.values()}) > 1:
            raise DisagreementError(f"{row.id}: {name} differs: {seen}")
    for name, share in row.close.items():
        _check_close(row, name, share, _facts(row, name, did))
    for name in row.scores:
        _facts(row, name, did)


def check_scores(row: Row, means: Mapping[str, Mapping[str, float]]) -> None:
    """Compare `means[name][side]` for each name of `row.scores`. Raises :class:`DisagreementError`."""
    for name, score in row.scores.items():
        _check_close(row, name, score.share, means[name])
        if low := {side: mean for side, mean in means[name].items() if mean < score.least}:
            raise DisagreementError(f"{row.id}: {name} is below {score.least}: {low}")


def _check_close(row: Row, name: str, share: float, facts: Mapping[str, Any]) -> None:
    numbers = {side: float(value) for side, value in facts.items()}
    if not numbers:
        return
    if max(numbers.values()) - min(numbers.values()) > share * max(map(abs, numbers.values())):
        raise DisagreementError(f"{row.id}: {name} differs by more than {share:.0%}: {numbers}")


def _facts(row: Row, name: str, did: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The fact `name` of each side. Raises :class:`DisagreementError` if a comparison lacks a side's fact."""
    seen = {side: done[name] for side, done in did.items() if name in done}
    wanted = len(did)
    if name in row.optional:
        wanted = 2 if len(did) == len(row.sides) else 0  # a side whose run failed has no facts
    if len(seen) < wanted:
        raise DisagreementError(f"{row.id}: {name} is missing, except in {seen}")
    return seen
