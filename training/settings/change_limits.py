"""Limits of the comparison of a dataset with the champion's, as the setting `data.change_limits` gives them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

# What each limit means is said in docs/data-changes.md.
DEFAULTS = {
    "rows": 0.5,
    "missing": 0.3,
    "scale": 10.0,
    "categories": 0.5,
    "classes": 0.4,
    "shape": 0.2,
    "identity": 0.5,
    "labels": 0.5,
}
_OF_DATASET = ("rows", "classes", "identity", "labels")
_FACTORS = ("scale",)


@dataclass(frozen=True)
class ChangeLimits:
    """The limits, by rule and by (column, rule), and the columns whose changes are ignored."""

    rules: dict[str, float] = field(default_factory=lambda: dict(DEFAULTS))
    of_columns: dict[tuple[str, str], float] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()

    def of(self, rule: str, column: str | None = None) -> float:
        """The limit of a rule for a column, or for all columns."""
        return self.of_columns.get((column or "", rule), self.rules[rule])


def limits_of(texts: Iterable[str], ignored: Iterable[str] = ()) -> ChangeLimits:
    """The limits that texts such as `scale=100` and `weight.scale=inf` give; other limits keep their defaults.

    Raises ValueError, which names the text and the rule.
    """
    rules, of_columns = dict(DEFAULTS), {}
    for text in texts:
        name, _, value = text.rpartition("=")
        column, _, rule = name.strip().rpartition(".")
        limit = _limit(text, rule, value)
        if column and rule in _OF_DATASET:
            raise ValueError(f"{text!r}: the limit {rule} is of the whole dataset; write {rule}={value}")
        if column:
            of_columns[column, rule] = limit
        else:
            rules[rule] = limit
    return ChangeLimits(rules, of_columns, frozenset(ignored))


def check_limits(texts: tuple[str, ...]) -> tuple[str, ...]:
    """`texts`, if :func:`limits_of` can read them; else raises ValueError."""
    limits_of(texts)
    return texts


def _limit(text: str, rule: str, value: str) -> float:
    if rule not in DEFAULTS:
        raise ValueError(
            f"{text!r}: no such limit; write LIMIT=NUMBER or COLUMN.LIMIT=NUMBER with one of {', '.join(DEFAULTS)}"
        )
    try:
        limit = float(value)
    except ValueError:
        raise ValueError(
            f"{text!r}: {value!r} is no number; write for example {rule}={DEFAULTS[rule]:g}"
        ) from None
    least, most = (1.0, math.inf) if rule in _FACTORS else (0.0, math.inf)
    if not least < limit <= most:
        raise ValueError(f"{text!r}: a limit {rule} is larger than {least:g}; inf switches it off")
    return limit
