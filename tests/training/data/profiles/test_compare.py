"""Rules about changed data: what is held, what is told, and that ordinary nights say nothing."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from training.data.profiles.columns import column_profile, number_profile
from training.data.profiles.compare import compare
from training.profile_records import Change, ColumnProfile, Profile
from training.settings.change_limits import limits_of


def numbers(values: Any, name: str = "weight") -> ColumnProfile:
    return number_profile([np.asarray(values, np.float64)], name)


def texts(values: Any, name: str = "town") -> ColumnProfile:
    return column_profile([pa.chunked_array([pa.array(list(values), pa.string())])], name, "category")


def dates(days: Any, name: str = "seen") -> ColumnProfile:
    return number_profile([np.asarray(days, np.float64)], name, "date")


def table(*columns: ColumnProfile, rows: int = 1000, **about: Any) -> Profile:
    return Profile(rows=rows, columns=columns, **about)


def effects(
    before: Profile, now: Profile, *limits: str, ignored: tuple[str, ...] = ()
) -> list[tuple[str, str]]:
    return [(change.what, change.effect) for change in compare(before, now, limits_of(limits, ignored))]


@pytest.fixture
def draw() -> np.random.Generator:
    return np.random.default_rng(7)


def kilograms(draw: np.random.Generator, rows: int = 1000) -> np.ndarray:
    return draw.gamma(4, 3, rows)


def zero_inflated(draw: np.random.Generator, rows: int = 1000) -> np.ndarray:
    return np.where(draw.random(rows) < 0.7, 0.0, draw.lognormal(3, 1, rows))


def centred(draw: np.random.Generator, rows: int = 1000) -> np.ndarray:
    return draw.normal(0, 2, rows)


@pytest.mark.parametrize("make", [kilograms, zero_inflated, centred])
@pytest.mark.parametrize("factor", [1000.0, 0.001, 10.0, 2.2046, 1 / 2.54])
def test_another_unit_is_held(
    draw: np.random.Generator, make: Callable[..., np.ndarray], factor: float
) -> None:
    before, now = table(numbers(make(draw))), table(numbers(make(draw) * factor))
    rows = make(draw)
    same_rows = table(numbers(rows)), table(numbers(rows * factor))
    assert effects(*same_rows) == [("scale", "hold")]
    if factor in (1000.0, 0.001):
        assert effects(before, now) == [("scale", "hold")]


def test_the_sentence_of_another_unit_has_both_values(draw: np.random.Generator) -> None:
    values = np.array([70.0, 71.0, 72.0] * 20)
    (change,) = compare(table(numbers(values), rows=60), table(numbers(values * 1000), rows=60))
    assert (change.reference, change.current, change.column) == ("71", "71,000", "weight")
    assert change.measure == pytest.approx(1000)
    assert change.sentence == (
        "column 'weight' is 1000 times as large: typically 71,000, and was 71; did its unit change?"
    )


def test_the_target_of_a_regression_is_compared_too(draw: np.random.Generator) -> None:
    price = kilograms(draw)
    before, now = table(target=numbers(price, "price")), table(target=numbers(100 * price, "price"))
    assert effects(before, now) == [("scale", "hold")]
    assert effects(before, table(target=numbers(100 * price, "another"))) == []


def test_a_spread_of_ten_without_another_median_is_told(draw: np.random.Generator) -> None:
    before, now = draw.normal(1000, 1, 1000), draw.normal(1000, 10, 1000)
    assert effects(table(numbers(before)), table(numbers(now))) == [("shape", "tell")]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (0.0, 0.5, "hold"),
        (0.0, 0.9, "hold"),
        (0.4, 0.7, "hold"),
        (0.45, 0.55, "tell"),
        (0.0, 0.1, "tell"),
        (0.3, 0.32, None),
        (0.9, 1.0, "hold"),
    ],
)
def test_missing_values(draw: np.random.Generator, before: float, now: float, expected: str | None) -> None:
    values = kilograms(draw, 2000)
    profiles = [
        table(numbers(np.where(np.arange(2000) % 100 < 100 * share, np.nan, values)), rows=2000)
        for share in (before, now)
    ]
    assert effects(*profiles) == ([("missing", expected)] if expected else [])


def test_missing_values_written_as_zero_are_held(draw: np.random.Generator) -> None:
    values = kilograms(draw)
    emptied = np.where(draw.random(1000) < 0.7, 0.0, values)
    assert effects(table(numbers(values)), table(numbers(emptied))) == [("zeros", "hold")]


def test_a_column_that_became_constant_is_held(draw: np.random.Generator) -> None:
    assert effects(table(numbers(kilograms(draw))), table(numbers(np.full(1000, 7.0)))) == [
        ("constant", "hold")
    ]
    towns = texts(draw.choice(["Ulm", "Bonn"], 1000))
    assert effects(table(towns), table(texts(["Ulm"] * 1000))) == [("constant", "hold")]


def test_few_rows_of_a_rare_flag_may_vanish() -> None:
    flags = numbers([1.0] * 5 + [0.0] * 995)
    assert effects(table(flags), table(numbers([0.0] * 1000))) == []
    assert effects(table(texts(["a"] * 990 + ["b"] * 10)), table(texts(["a"] * 1000))) == []


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(500, "hold"), (100, "hold"), (800, "tell"), (950, None), (1500, None), (2000, "tell")],
)
def test_rows(rows: int, expected: str | None) -> None:
    assert effects(table(), table(rows=rows)) == ([("rows", expected)] if expected else [])


def test_fewer_rows_by_another_setting_are_told() -> None:
    assert effects(table(), table(rows=100, subset=(80, 20))) == [("rows", "tell")]


def test_an_old_export_is_held_by_its_time_and_by_its_dates(draw: np.random.Generator) -> None:
    before = table(newest=20_000.0, newest_is_date=True)
    (change,) = compare(before, table(newest=19_999.0, newest_is_date=True))
    assert (change.what, change.effect) == ("time", "hold")
    assert (change.reference, change.current) == ("2024-10-04", "2024-10-03")
    assert effects(before, table(newest=20_000.0, newest_is_date=True)) == []
    days = draw.uniform(19_000, 20_000, 1000)
    assert effects(table(dates(days)), table(dates(days[days < 19_900]), rows=900)) == [("time", "hold")]
    assert effects(table(dates(days)), table(dates(days + 30))) == []


def test_columns_and_kinds(draw: np.random.Generator) -> None:
    weight, town = numbers(kilograms(draw)), texts(draw.choice(["Ulm", "Bonn"], 1000))
    assert effects(table(weight, town), table(weight)) == [("column", "hold")]
    (change,) = compare(table(weight, town), table(weight))
    assert "drop=['town']" in change.sentence
    assert effects(table(weight), table(weight, town)) == [("column", "tell")]
    damaged = texts([f"{value:.1f} kg" for value in kilograms(draw)], "weight")
    assert effects(table(weight), table(damaged)) == [("kind", "hold")]
    changes = compare(table(weight, town), table(weight), rewritten=["town"])
    assert [change.effect for change in changes] == ["tell"]


def test_categories(draw: np.random.Generator) -> None:
    before = table(texts(["Ulm"] * 500 + ["Bonn"] * 450 + ["Jena"] * 50))
    assert effects(before, table(texts(["ULM"] * 500 + ["BONN"] * 500))) == [("categories", "hold")]
    new = table(texts(["Ulm"] * 500 + ["Bonn"] * 400 + ["Jena"] * 50 + ["Kiel"] * 50))
    assert [change.sentence for change in compare(before, new)] == [
        "column 'town' has new categories in 5 % of the rows: 'Kiel'"
    ]
    assert effects(before, table(texts(["Ulm"] * 520 + ["Bonn"] * 480))) == [
        ("categories", "tell")
    ]  # without Jena
    assert effects(before, table(texts(["Ulm"] * 150 + ["Bonn"] * 800 + ["Jena"] * 50))) == [
        ("categories", "tell")
    ]


def test_ever_new_names_say_nothing(draw: np.random.Generator) -> None:
    before = table(texts([f"customer {number}" for number in range(1000)]))
    now = table(texts([f"customer {number}" for number in range(1050)]), rows=1050)
    assert effects(before, now) == []


def test_classes() -> None:
    before = table(classes={"circle": 500, "cross": 480, "star": 20})
    gone = compare(before, table(classes={"circle": 500, "cross": 500}))
    assert [(change.column, change.effect) for change in gone] == [("star", "hold")]
    assert effects(before, table(classes={"circle": 500, "cross": 499, "star": 1})) == [("classes", "hold")]
    new, *_ = compare(
        before, table(classes={"circle": 500, "cross": 480, "star": 20, "moon": 150}, rows=1150)
    )
    assert (new.sentence, new.effect) == ("class moon is new: 150 rows", "tell")
    assert effects(table(classes={"a": 996, "b": 4}), table(classes={"a": 1000})) == []


def test_exchanged_labels_are_held_and_other_shares_told() -> None:
    ill = table(classes={"ill": 50, "well": 950})
    (change,) = compare(ill, table(classes={"ill": 950, "well": 50}))
    assert (change.what, change.effect, change.reference, change.current) == (
        "classes",
        "hold",
        "5 %",
        "95 %",
    )
    assert effects(ill, table(classes={"ill": 250, "well": 750})) == [("classes", "tell")]
    assert effects(ill, table(classes={"ill": 65, "well": 935})) == []


def test_another_shape_is_told(draw: np.random.Generator) -> None:
    values = kilograms(draw)
    (change,) = compare(table(numbers(values)), table(numbers(values + 6)))
    assert (change.what, change.effect) == ("shape", "tell")
    assert change.measure > change.limit


def test_limits_of_all_columns_and_of_one(draw: np.random.Generator) -> None:
    values = kilograms(draw)
    grams = table(numbers(values)), table(numbers(values * 1000))
    assert effects(*grams, "scale=10000") == [("shape", "tell")]
    assert effects(*grams, "weight.scale=inf", "weight.shape=inf") == []
    assert effects(*grams, "other.scale=inf") == [("scale", "hold")]
    assert effects(*grams, ignored=("weight",)) == []
    assert effects(table(), table(rows=450), "rows=0.6") == [("rows", "tell")]


def test_changes_that_hold_come_first(draw: np.random.Generator) -> None:
    values = kilograms(draw)
    before = table(numbers(values, "a"), numbers(values, "b"), rows=1000)
    now = table(numbers(values + 6, "a"), numbers(values * 1000, "b"), rows=1000)
    assert effects(before, now) == [("scale", "hold"), ("shape", "tell")]


def test_measures_of_images(draw: np.random.Generator) -> None:
    bright, dark = draw.uniform(0.4, 0.6, 500), draw.uniform(0.02, 0.03, 500)
    before = Profile(rows=500, measures=(numbers(bright, "brightness"),), shape=(3, 8, 8))
    now = Profile(rows=500, measures=(numbers(dark, "brightness"),), shape=(3, 8, 8))
    assert effects(before, now) == [("scale", "hold")]
    resized = now.model_copy(update={"shape": (3, 16, 16)})
    assert effects(before, resized) == [("images", "tell")]


def a_night(draw: np.random.Generator, rows: int) -> Profile:
    """Columns of many shapes, drawn anew: a sliding window of other rows."""
    classes = draw.choice(["yes", "no"], rows, p=[0.1, 0.9])
    return Profile(
        rows=rows,
        columns=(
            numbers(draw.lognormal(0, 2, rows), "income"),
            numbers(draw.poisson(0.5, rows), "children"),
            numbers(zero_inflated(draw, rows), "rain"),
            numbers(centred(draw, rows), "balance"),
            numbers(np.where(draw.random(rows) < 0.3, np.nan, draw.normal(50, 10, rows)), "age"),
            numbers(draw.standard_t(2, rows), "return"),
            numbers((draw.random(rows) < 0.02).astype(float), "flag"),
            texts(draw.choice(["a", "b", "c"], rows, p=[0.6, 0.3, 0.1]), "kind"),
            texts(draw.choice([f"town {n}" for n in range(60)], rows), "town"),
            dates(draw.uniform(19_000, 20_000, rows), "born"),
        ),
        classes={str(name): int((classes == name).sum()) for name in np.unique(classes)},
        target=numbers(draw.gamma(2, 5, rows), "price"),
    )


@pytest.mark.parametrize("rows", [40, 150, 1000])
def test_quiet_nights_of_other_rows_hold_nothing_and_tell_little(rows: int) -> None:
    found: list[Change] = []
    for seed in range(100):
        draw = np.random.default_rng([rows, seed])
        found += compare(a_night(draw, rows), a_night(draw, int(rows * draw.uniform(1, 1.1))))
    assert [change.sentence for change in found if change.effect == "hold"] == []
    assert len(found) <= 4, [change.sentence for change in found]


def test_two_hundred_nights_of_growth_say_nothing() -> None:
    """The champion's table grows by 1 % a night; each night is compared with the first one, as of an old champion."""
    draw = np.random.default_rng(1)
    numbers_of = draw.lognormal(3, 1, 2000), draw.normal(0, 1, 2000), np.arange(2000.0)
    kinds = draw.choice(["a", "b", "c", "d"], 2000, p=[0.7, 0.2, 0.07, 0.03])

    def night(rows: int) -> Profile:
        columns = [
            numbers(values[:rows], name)
            for values, name in zip(numbers_of, ("income", "score", "id"), strict=True)
        ]
        days = dates(19_000 + np.arange(rows) / 10)
        return Profile(rows=rows, columns=(*columns, texts(kinds[:rows]), days), newest=float(rows))

    first = night(1500)
    found = [change.sentence for rows in range(1503, 1800, 15) for change in compare(first, night(rows))]
    assert found == []
