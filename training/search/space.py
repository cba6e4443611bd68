"""The space of a search: the possible values of each setting, parsed from text, and the values of each trial.

A trial's values are a pure function of the space, the seed and the trial's number. So an interrupted search proposes
the same trials again, and a search with more trials begins with the same trials. Each value is computed from one number
of :class:`random.Random`, whose sequence Python keeps the same in all versions.
"""

import json
import math
import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from training.errors import SettingError
from training.settings.overrides import value_of
from training.storage.files import canonical_json

EXAMPLES = {
    "uniform": "uniform(0,0.5)",
    "loguniform": "loguniform(1e-4,1e-1)",
    "quniform": "quniform(0,0.5,0.1)",
    "randint": "randint(2,10)",
    "lograndint": "lograndint(16,512)",
    "choice": "choice(adamw,sgd)",
}
_IN_PYTHON = '{"training.learning_rate": "loguniform(1e-4,1e-1)"}'
Values = dict[str, Any]  # value of each searched setting, by the setting's dotted name
_CALL = re.compile(r"\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)
_UP, _DOWN = 1.2, 0.8  # factors of population-based training, as in Ray Tune
_DIGITS = 4  # significant digits of uniform and loguniform: a command with the winner's values stays readable
_DRAWS = 100  # draws for each requested trial, at most: a draw with the values of an earlier trial is dropped


@dataclass(frozen=True)
class Domain:
    """Possible values of one setting: a distribution with its parameters, or the items of a choice."""

    kind: str
    numbers: tuple[float, ...] = ()
    items: tuple[Any, ...] = ()

    @property
    def is_logarithmic(self) -> bool:
        """Whether the values are drawn evenly on a logarithmic scale."""
        return self.kind.startswith("log")

    def value(self, share: float) -> Any:
        """The quantile of the distribution at the probability `share`, which is in [0, 1)."""
        return _VALUES[self.kind](self, share)

    def near(self, value: Any, up: bool) -> Any:
        """A value of the domain near `value`: 1.2 or 0.8 times a number, or the next or previous item of a choice.

        Whole numbers change by at least 1, and multiples by at least one step. A value beyond the domain becomes its
        first or last value.
        """
        if self.kind == "choice":
            at = self.items.index(value) + (1 if up else -1)
            return self.items[min(max(at, 0), len(self.items) - 1)]
        number = value * (_UP if up else _DOWN)
        if least := _step_of(self):
            number = max(number, value + least) if up else min(number, value - least)
        return _NEAREST[self.kind](self, number)


def parse_space(texts: Mapping[str, str]) -> dict[str, Domain]:
    """Parse the values of each setting, such as `{"training.learning_rate": "loguniform(1e-4,1e-1)"}`.

    Raises :class:`SettingError`, which names the setting, the rule that its text breaks, and a valid example.
    """
    if not isinstance(texts, Mapping):
        raise SettingError(
            f"--space: expected the values of each setting, as {_IN_PYTHON}, not an object of the type "
            f"{type(texts).__name__}"
        )
    if not texts:
        raise SettingError(f"--space: name at least one setting, such as {_example('loguniform')}")
    return {name: _parsed(name, text) for name, text in texts.items()}


def split_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """Split `["training.learning_rate=loguniform(1e-4,1e-1)", ...]` into texts by setting.

    Raises :class:`SettingError` for a text without `=`, and for a setting that is named twice.
    """
    texts: dict[str, str] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        name = name.strip()
        if not equals or not name:
            raise SettingError(
                f"--space {assignment!r}: expected SETTING=VALUES, such as {_example('uniform')}"
            )
        if name in texts:
            raise SettingError(f"--space {assignment!r}: {name} has values already; name each setting once")
        texts[name] = text
    return texts


def propose(space: Mapping[str, Domain], trials: int, seed: int) -> list[Values]:
    """Values of up to `trials` trials, all different.

    A space with few combinations of values gives fewer trials: after 100 draws for each requested trial, the search for
    further combinations ends.
    """
    proposals: dict[str, Values] = {}
    for number in range(trials * _DRAWS):
        values = {name: domain.value(_share(seed, number, name)) for name, domain in space.items()}
        proposals.setdefault(canonical_json(values), values)
        if len(proposals) == trials:
            break
    return list(proposals.values())


def text_of(value: Any) -> str:
    """Format a value as `--set` reads it; None becomes `none`, and a relative path begins with `./`.

    A text that `--set` would read as another value, such as `2024`, is written in JSON, with quotes.
    """
    if isinstance(value, PurePath):  # `champion` as a path is no version
        return str(value) if value.is_absolute() else f"./{value}"
    is_plain = isinstance(value, str) and value_of(value) == value
    return "none" if value is None else value if is_plain else json.dumps(value)


def _share(seed: int, number: int, name: str) -> float:
    return random.Random(f"{seed}/{number}/{name}").random()


def _parsed(name: str, text: str) -> Domain:
    if not isinstance(name, str) or not isinstance(text, str):
        raise SettingError(f"--space {name}={text!r}: expected texts, as {_IN_PYTHON}")
    call = _CALL.fullmatch(text)
    if call is None or call[1] not in EXAMPLES:
        raise SettingError(
            f"--space {name}={text}: expected one of {', '.join(f'{kind}(...)' for kind in EXAMPLES)}, such as "
            f"{_example('loguniform')}"
        )
    kind, arguments = call[1], [part.strip() for part in call[2].split(",")]
    try:
        return _choice(arguments) if kind == "choice" else _distribution(kind, arguments)
    except (ValueError, OverflowError) as error:
        raise SettingError(f"--space {name}={text}: {error}, such as {EXAMPLES[kind]}") from None


def _choice(arguments: list[str]) -> Domain:
    if "" in arguments or len(set(arguments)) < max(2, len(arguments)):
        raise ValueError("choice takes two or more different values, separated by commas")
    items = tuple(value_of(text) for text in arguments)
    if any(isinstance(item, list | dict) for item in items) or "[" in "".join(arguments):
        raise ValueError("choice takes numbers, words, true, false or none")
    if any(isinstance(item, float) and not math.isfinite(item) for item in items):
        raise ValueError("choice takes finite numbers")
    if len(set(map(canonical_json, items))) < len(items):
        raise ValueError("choice takes two or more different values, separated by commas")
    return Domain("choice", items=items)


def _distribution(kind: str, arguments: list[str]) -> Domain:
    wanted = "three numbers (from, to, step)" if kind == "quniform" else "two numbers (from, to)"
    if len(arguments) != (3 if kind == "quniform" else 2):
        raise ValueError(f"{kind} takes {wanted}")
    whole = kind.endswith("randint")
    try:
        numbers = tuple(int(text) if whole else float(text) for text in arguments)
    except ValueError:
        raise ValueError(
            f"{kind} takes {wanted.replace('numbers', 'whole numbers') if whole else wanted}"
        ) from None
    low, high = numbers[:2]
    if not all(math.isfinite(number) for number in numbers) or low >= high:
        raise ValueError(f"the first number of {kind} must be less than the second")
    if not math.isfinite(high - low):
        raise ValueError(f"the numbers of {kind} are too far apart")
    if kind.startswith("log") and low <= 0:
        raise ValueError(f"the numbers of {kind} must be above 0")
    if kind == "quniform" and numbers[2] > 0 and not math.isfinite(max(abs(low), abs(high)) / numbers[2]):
        raise ValueError("the step of quniform is too small")
    if kind == "quniform" and not 0 < numbers[2] <= high - low:
        raise ValueError("the step of quniform must be above 0, and at most the distance of the two numbers")
    return Domain(kind, numbers)


def _example(kind: str) -> str:
    return f"training.learning_rate={EXAMPLES[kind]}"


def _rounded(domain: Domain, value: float) -> float:
    """`value` rounded to :data:`_DIGITS` significant digits, inside the domain's limits."""
    low, high = domain.numbers[:2]
    return min(max(float(f"{value:.{_DIGITS}g}"), low), high)


def _between(domain: Domain, share: float) -> float:
    low, high = domain.numbers[:2]
    return low + share * (high - low)


def _log_between(domain: Domain, share: float) -> float:
    low, high = map(math.log, domain.numbers[:2])
    return math.exp(low + share * (high - low))


def _whole(domain: Domain, value: float) -> int:
    """`value` rounded down, below the upper limit, which is excluded as in Ray Tune."""
    low, high = domain.numbers[:2]
    return int(min(max(math.floor(value), low), high - 1))


def _stepped(domain: Domain, share: float) -> float:
    return _multiple(domain, _between(domain, share))


def _multiple(domain: Domain, number: float) -> float:
    """The nearest multiple of the step inside the limits; a whole number if the limits and the step are whole."""
    low, high, step = domain.numbers
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    value = step * min(max(round(number / step), first), last)
    whole = all(float(number).is_integer() for number in domain.numbers)
    return int(value) if whole else float(f"{value:.12g}")


_VALUES: dict[str, Callable[[Domain, float], Any]] = {
    "uniform": lambda domain, share: _rounded(domain, _between(domain, share)),
    "loguniform": lambda domain, share: _rounded(domain, _log_between(domain, share)),
    "quniform": _stepped,
    "randint": lambda domain, share: _whole(domain, _between(domain, share)),
    "lograndint": lambda domain, share: _whole(domain, _log_between(domain, share)),
    "choice": lambda domain, share: domain.items[int(share * len(domain.items))],
}

_NEAREST: dict[str, Callable[[Domain, float], float]] = {
    "uniform": _rounded,
    "loguniform": _rounded,
    "quniform": _multiple,
    "randint": lambda domain, number: _whole(domain, round(number)),
    "lograndint": lambda domain, number: _whole(domain, round(number)),
}


def _step_of(domain: Domain) -> float:
    """The least difference of two values of the domain; 0 if there is none."""
    if domain.kind == "quniform":
        return domain.numbers[2]
    return 1 if domain.kind.endswith("randint") else 0
