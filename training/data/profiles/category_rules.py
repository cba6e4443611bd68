"""Rules about columns of categories and of booleans."""

from collections.abc import Iterator

from training.data.profiles.distances import is_rarer, moved_most, variation, variation_noise
from training.data.profiles.pair import Pair
from training.data.profiles.wording import percent, quoted
from training.profile_records import Change

_NEVER = 1e-4  # chance at which the other values of a constant column are absent from so few rows
_ALREADY = 0.95  # a category of more rows than this share may become the only one
_FEW_CATEGORIES = 20  # a column of at most so many: each new or vanished category is told
_TOLD_ROWS = 5  # rows that a new category needs to be told
_TOLD_SHARE = 0.05  # ... and all new, or all vanished, categories of a column with more of them


def category_changes(pair: Pair) -> Iterator[Change]:
    """Changes of a column of categories: constant, of unknown categories, new and vanished ones, or other shares."""
    if (change := _constant(pair) or _renamed(pair)) is not None:
        yield change
        return
    yield from _new(pair)
    yield from _vanished(pair)
    if (change := _shares(pair)) is not None:
        yield change


def _constant(pair: Pair) -> Change | None:
    if pair.current.distinct != 1 or pair.reference.distinct < 2:
        return None
    (name,) = pair.current.categories
    share = pair.reference.categories.get(name, 0.0)
    if share > _ALREADY or share**pair.current_values > _NEVER:
        return None
    return pair.change(
        "constant",
        (f"{pair.reference.distinct:,} categories", repr(name)),
        1.0,
        1.0,
        "hold",
        f"is {name!r} in all rows, and had {pair.reference.distinct:,} categories",
    )


def _unknown(pair: Pair) -> dict[str, float]:
    """Shares of the current categories that the champion's dataset did not have, as far as it lists them.

    A category that the champion's profile does not list, as it has more than it lists, was no commoner there than the
    rarest that is listed.
    """
    listed = pair.reference.categories
    rarest = min(listed.values()) if pair.reference.distinct > len(listed) else 0.0
    return {
        name: share
        for name, share in pair.current.categories.items()
        if name not in listed and is_rarer(share, pair.current_values, rarest, pair.reference_values)
    }


def _renamed(pair: Pair) -> Change | None:
    unknown, limit = _unknown(pair), pair.limit("categories")
    share = sum(unknown.values())
    if share < limit or pair.reference.distinct > len(pair.reference.categories):
        return None
    return pair.change(
        "categories",
        (quoted(list(pair.reference.categories)), quoted(list(unknown))),
        share,
        limit,
        "hold",
        f"has categories that the champion never saw in {percent(share)} of the rows "
        f"({quoted(list(unknown))}); are they written in another way?",
    )


def _new(pair: Pair) -> Iterator[Change]:
    unknown = _unknown(pair)
    if pair.reference.distinct <= _FEW_CATEGORIES:
        unknown = {
            name: share for name, share in unknown.items() if share * pair.current_values >= _TOLD_ROWS
        }
    elif sum(unknown.values()) < _TOLD_SHARE:
        return
    if unknown:
        share = sum(unknown.values())
        yield pair.change(
            "categories",
            ("none", f"{quoted(list(unknown))}: {percent(share)}"),
            share,
            0.0,
            "tell",
            f"has new categories in {percent(share)} of the rows: {quoted(list(unknown))}",
        )


def _vanished(pair: Pair) -> Iterator[Change]:
    if pair.current.distinct > len(pair.current.categories):
        return
    there = pair.current.categories
    gone = {
        name: share
        for name, share in pair.reference.categories.items()
        if name not in there and is_rarer(0.0, pair.current_values, share, pair.reference_values)
    }
    share = sum(gone.values())
    if gone and (pair.reference.distinct <= _FEW_CATEGORIES or share >= _TOLD_SHARE):
        yield pair.change(
            "categories",
            (f"{quoted(list(gone))}: {percent(share)}", "none"),
            share,
            0.0,
            "tell",
            f"has no row any more of {quoted(list(gone))}, which had {percent(share)} of the rows",
        )


def _shares(pair: Pair) -> Change | None:
    before, now = pair.reference.categories, pair.current.categories
    moved, limit = variation(before, now), pair.limit("shape")
    if moved <= max(limit, variation_noise(before, pair.reference_values, pair.current_values)):
        return None
    name = moved_most(before, now)
    values = (percent(before.get(name, 0.0)), percent(now.get(name, 0.0)))
    return pair.change(
        "categories",
        values,
        moved,
        limit,
        "tell",
        f"has {name!r} in {values[1]} of the rows, and had in {values[0]}",
    )
