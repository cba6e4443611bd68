"""Names of the splits that a source may have: train and test, and perhaps a validation split beside them."""

from collections.abc import Iterable

TRAIN, VALIDATION, TEST = "train", "val", "test"
NEEDED = (TRAIN, TEST)
_NAMES = {TRAIN: TRAIN, TEST: TEST, VALIDATION: VALIDATION, "valid": VALIDATION, "validation": VALIDATION}
NAMES = tuple(_NAMES)


def split_named(name: str) -> str:
    """The split that a folder, file or value called `name` means, or "" when it means none."""
    return _NAMES.get(name, "")


def in_order(found: Iterable[str]) -> tuple[str, ...]:
    """The splits of a source in their lasting order; ("",) for rows that the source does not divide."""
    present = set(found)
    return ("",) if present == {""} else tuple(name for name in (TRAIN, VALIDATION, TEST) if name in present)


def is_divided(found: Iterable[str]) -> bool:
    """Whether the rows are divided as they must be: not at all, or into train and test, with or without val."""
    return set(found) - {VALIDATION} == set(NEEDED) or set(found) == {""}
