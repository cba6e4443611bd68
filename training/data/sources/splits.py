"""Names of the splits that a source may have: train and test, and optionally a validation split."""

from collections.abc import Iterable

TRAIN, VALIDATION, TEST = "train", "val", "test"
NEEDED = (TRAIN, TEST)
_NAMES = {TRAIN: TRAIN, TEST: TEST, VALIDATION: VALIDATION, "valid": VALIDATION, "validation": VALIDATION}
NAMES = tuple(_NAMES)


def split_named(name: str) -> str:
    """The split that the name of a folder or file, or a value of a column, stands for; "" for any other name."""
    return _NAMES.get(name, "")


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """The splits of a source in the fixed order train, val, test; ("",) when the source has no splits."""
    present = set(names)
    return ("",) if present == {""} else tuple(name for name in (TRAIN, VALIDATION, TEST) if name in present)


def is_divided(names: Iterable[str]) -> bool:
    """Whether the splits are a valid set: none at all (""), or train and test, with or without val."""
    return set(names) - {VALIDATION} == set(NEEDED) or set(names) == {""}
