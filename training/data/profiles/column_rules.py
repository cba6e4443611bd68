"""Rules about columns: features and target of a table, and the measures of images and texts."""

from collections.abc import Iterator, Sequence
from functools import partial

from training.data.profiles.category_rules import category_changes
from training.data.profiles.distances import is_rarer
from training.data.profiles.number_rules import date_changes, number_changes
from training.data.profiles.pair import Pair
from training.data.profiles.wording import percent
from training.profile_records import MEASURED_ROWS, Change, ColumnProfile, Effect, Profile
from training.settings.change_limits import ChangeLimits

_MISSING = 0.05  # change of the share of missing values that is told
_NOUNS = {
    "number": "numbers",
    "category": "text",
    "boolean": "true or false",
    "date": "dates",
    "text": "text",
}


def compare_columns(reference: Profile, current: Profile, limits: ChangeLimits) -> Iterator[Change]:
    """Changes of columns, target and measures; a column that only one profile has is gone or new."""
    pair = partial(Pair, reference_rows=reference.rows, current_rows=current.rows, limits=limits)
    if reference.shape != current.shape:
        yield _of_shape(reference.shape, current.shape)
    else:
        few = partial(
            pair,
            reference_rows=min(reference.rows, MEASURED_ROWS),
            current_rows=min(current.rows, MEASURED_ROWS),
        )
        for before, now in _matched(reference.measures, current.measures):
            yield from column_changes(few(before, now, noun=f"measure {now.name!r}"))
    for before, now in _matched(reference.columns, current.columns):
        yield from column_changes(pair(before, now, noun=f"column {now.name!r}"))
    yield from _gone_and_new(reference.columns, current.columns)
    had, has = reference.target, current.target
    if had is not None and has is not None and had.name == has.name:
        yield from column_changes(pair(had, has, noun=f"target {has.name!r}"))


def column_changes(pair: Pair) -> Iterator[Change]:
    """Changes of one column. A column whose values vanished or became others says nothing more."""
    before, now = pair.reference, pair.current
    if before.kind != now.kind:
        yield pair.change(
            "kind",
            (_NOUNS[before.kind], _NOUNS[now.kind]),
            1.0,
            0.0,
            "hold",
            f"holds {_NOUNS[now.kind]}, and held {_NOUNS[before.kind]}: were values damaged?",
        )
        return
    missing = list(_missing(pair))
    yield from missing
    if any(change.effect == "hold" for change in missing) or not min(
        pair.reference_values, pair.current_values
    ):
        return
    rules = {"number": number_changes, "date": date_changes}.get(now.kind, category_changes)
    yield from rules(pair)


def _missing(pair: Pair) -> Iterator[Change]:
    """Missing values: held if a large share of the values that the champion's dataset had is not there any more."""
    before, now = pair.reference.missing, pair.current.missing
    if not is_rarer(now, pair.current_rows, before, pair.reference_rows):
        return
    lost, limit = 1 - (1 - now) / (1 - before) if before < 1 else 0.0, pair.limit("missing")
    held = lost >= limit
    if not held and abs(now - before) <= _MISSING:
        return
    yield pair.change(
        "missing",
        (f"{percent(before)} missing", f"{percent(now)} missing"),
        lost if held else abs(now - before),
        limit if held else _MISSING,
        "hold" if held else "tell",
        f"has no value in {percent(now)} of the rows, and had none in {percent(before)}",
    )


def _matched(
    before: Sequence[ColumnProfile], now: Sequence[ColumnProfile]
) -> Iterator[tuple[ColumnProfile, ColumnProfile]]:
    had = {column.name: column for column in before}
    return ((had[column.name], column) for column in now if column.name in had)


def _gone_and_new(before: Sequence[ColumnProfile], now: Sequence[ColumnProfile]) -> Iterator[Change]:
    there, had = {column.name for column in now}, {column.name for column in before}
    for column in before:
        if column.name not in there:
            remedy = f"if that is meant, write drop=[{column.name!r}] in the recipe's Table"
            yield _of_column(column, "gone", "hold", f"column {column.name!r} is gone; {remedy}")
    for column in now:
        if column.name not in had:
            remedy = f"drop=[{column.name!r}] in the recipe's Table leaves it out"
            yield _of_column(column, "new", "tell", f"column {column.name!r} is new; {remedy}")


def _of_column(column: ColumnProfile, word: str, effect: Effect, sentence: str) -> Change:
    kind = _NOUNS[column.kind]
    values = (kind, "gone") if word == "gone" else ("none", kind)
    return Change(
        what="column",
        column=column.name,
        reference=values[0],
        current=values[1],
        measure=1.0,
        limit=0.0,
        effect=effect,
        sentence=sentence,
    )


def _of_shape(before: tuple[int, ...], now: tuple[int, ...]) -> Change:
    values = ["x".join(map(str, shape)) or "none" for shape in (before, now)]
    return Change(
        what="images",
        reference=values[0],
        current=values[1],
        measure=1.0,
        limit=0.0,
        effect="tell",
        sentence=f"images are {values[1]} (channels, height, width), and were {values[0]}",
    )
