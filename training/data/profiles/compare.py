"""Compare the profile of a dataset with that of the champion's dataset: which changes to tell, which hold the run.

Held is what is nearly always a mistake of an export. Limits leave room for chance, so that small datasets and
datasets that grow say nothing.
"""

from collections.abc import Iterable, Iterator

from training.data.profiles.column_rules import compare_columns
from training.data.profiles.distances import moved_most, variation, variation_noise
from training.data.profiles.wording import figure, moment, percent
from training.data.sources.wording import counted
from training.profile_records import Change, Profile
from training.settings.change_limits import ChangeLimits

_FEWER = 0.1  # share of the rows that is gone; more are told
_MORE = 2.0  # times as many rows are told
_CLASS_ROWS = 5  # a class of fewer rows may vanish
_CLASS_LEFT = 0.05  # a class that keeps at most this share of its rows has vanished
_CLASS_MOVED = 0.1  # total variation of the class shares that is told


def compare(
    reference: Profile, current: Profile, limits: ChangeLimits | None = None, rewritten: Iterable[str] = ()
) -> list[Change]:
    """The changes from `reference`, the champion's dataset, to `current`, those that hold first.

    `rewritten` are columns that the recipe itself leaves out or computes otherwise now; their changes are told.
    """
    limits = limits or ChangeLimits()
    changes = [
        *_rows(reference, current, limits),
        *_time(reference, current),
        *_classes(reference, current, limits),
        *compare_columns(reference, current, limits),
    ]
    meant = frozenset(rewritten)
    told = [
        change.model_copy(update={"effect": "tell"}) if change.column in meant else change
        for change in changes
        if change.column is None or change.column not in limits.ignored
    ]
    return sorted(told, key=lambda change: change.effect)


def _rows(reference: Profile, current: Profile, limits: ChangeLimits) -> Iterator[Change]:
    if not reference.rows:
        return
    times, limit = current.rows / reference.rows, limits.of("rows")
    gone = 1 - times
    held = gone >= limit and reference.subset == current.subset  # other settings choose other rows
    if not held and gone <= _FEWER and times < _MORE:
        return
    rows = f"{counted(current.rows, 'row')}, and the champion's data had {reference.rows:,}"
    fewer = f"{percent(gone)} of the rows are gone: {rows}"
    yield Change(
        what="rows",
        reference=f"{reference.rows:,}",
        current=f"{current.rows:,}",
        measure=gone,
        limit=limit if held else _FEWER if gone > 0 else 1 - _MORE,
        effect="hold" if held else "tell",
        sentence=fewer if gone > 0 else f"{figure(times)} times as many rows: {rows}",
    )


def _time(reference: Profile, current: Profile) -> Iterator[Change]:
    """The newest row must not be older than the newest row of the champion's dataset."""
    if reference.newest is None or current.newest is None or current.newest >= reference.newest:
        return
    if reference.newest_is_date != current.newest_is_date:
        return
    before, now = (moment(profile.newest or 0.0, profile.newest_is_date) for profile in (reference, current))
    yield Change(
        what="time",
        reference=before,
        current=now,
        measure=current.newest,
        limit=reference.newest,
        effect="hold",
        sentence=f"the newest row is of {now}, and the champion's data reached {before}: is this an old export?",
    )


def _classes(reference: Profile, current: Profile, limits: ChangeLimits) -> Iterator[Change]:
    total, other = sum(current.classes.values()), sum(reference.classes.values())
    if not total or not other:
        return
    for name, rows in reference.classes.items():
        left = current.classes.get(name, 0)
        if rows >= _CLASS_ROWS and left <= _CLASS_LEFT * rows:
            gone = f"class {name} is gone" if not left else f"class {name} has nearly vanished"
            yield Change(
                what="classes",
                column=name,
                reference=counted(rows, "row"),
                current=counted(left, "row"),
                measure=left / rows,
                limit=_CLASS_LEFT,
                effect="hold",
                sentence=f"{gone}: {counted(left, 'row')}, and the champion's data had {rows:,}",
            )
    for name, rows in current.classes.items():
        if name not in reference.classes:
            yield Change(
                what="classes",
                column=name,
                reference="no row",
                current=counted(rows, "row"),
                measure=rows / total,
                limit=0.0,
                effect="tell",
                sentence=f"class {name} is new: {counted(rows, 'row')}",
            )
    yield from _class_shares(reference, current, limits)


def _class_shares(reference: Profile, current: Profile, limits: ChangeLimits) -> Iterator[Change]:
    shares, before = (
        {name: rows / sum(p.classes.values()) for name, rows in p.classes.items()}
        for p in (current, reference)
    )
    moved, limit = variation(before, shares), limits.of("classes")
    chance = variation_noise(before, sum(reference.classes.values()), sum(current.classes.values()))
    if moved <= max(min(_CLASS_MOVED, limit), chance):
        return
    name = moved_most(before, shares)
    was, now = before.get(name, 0.0), shares.get(name, 0.0)
    held = moved >= limit
    question = ": were labels exchanged?" if held else ""
    yield Change(
        what="classes",
        column=name,
        reference=percent(was),
        current=percent(now),
        measure=moved,
        limit=limit if held else _CLASS_MOVED,
        effect="hold" if held else "tell",
        sentence=f"{percent(now)} of the rows are of class {name}, and were {percent(was)}{question}",
    )
