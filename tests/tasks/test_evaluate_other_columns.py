"""Nights on which a table has other columns than the champion learned: the champion is scored on its own columns."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table_candidates import Candidate, candidate, parcels

from tasks.evaluate import _loaded, compare
from tasks.registry.aliases import champion_of, load_version
from tasks.trackers.mlflow_run import connect
from training.data.tables.encoding import encode
from training.data.tables.other_columns import in_columns_of
from training.errors import SettingError
from training.storage.paths import Home

pytest.importorskip("xgboost")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def champion(home: Home) -> Candidate:
    """A poor champion on weight and colour."""
    first = candidate(home, parcels(), rounds=3)
    assert first.register().alias == "champion"
    return first


def test_rows(found: Candidate) -> pa.Table:
    files = sorted((Path(found.version.path) / "test").glob("part-*.parquet"))
    return pq.read_table(files)


test_rows.__test__ = False  # type: ignore[attr-defined]


def scores(found: Candidate, name: str = "champion") -> npt.NDArray[np.float32]:
    """The saved predictions of a model; NaN for a row that was left out."""
    table = pq.read_table(found.evaluation.predictions)
    predictions = table[name].to_numpy().astype(np.float32)
    assert np.array_equal(np.isnan(predictions), ~table["compared"].to_numpy())
    return predictions


def learned(first: Candidate, found: Candidate, columns: list[str]) -> npt.NDArray[np.bool_]:
    """Mask of the test rows of `found` that have the values of a training row of `first` in `columns`."""
    files = sorted((Path(first.version.path) / "train").glob("part-*.parquet"))
    names = [f"feature.{name}" for name in columns]
    seen = set(map(tuple, pq.read_table(files, columns=names).to_pandas().fillna("").astype(str).to_numpy()))
    rows = test_rows(found).select(names).to_pandas().fillna("").astype(str).to_numpy()
    return np.array([tuple(row) in seen for row in rows])


def check_scored(home: Home, first: Candidate, found: Candidate, columns: list[str]) -> None:
    """The champion's saved predictions are those of its own columns, on rows that it was not trained on."""
    assert found.version.table is not None
    theirs = load_version(home, "parcels", "1")
    assert theirs.table == first.version.table
    assert theirs.table is not None
    wanted = theirs.predict(encode(in_columns_of(test_rows(found), theirs.table), theirs.table, "feature."))
    seen = learned(first, found, columns) & ~learned(found, found, columns)
    assert 0 < seen.sum() < len(seen)
    assert np.array_equal(scores(found), np.where(seen, np.nan, wanted), equal_nan=True)
    assert found.evaluation.left_out == seen.sum()
    assert found.evaluation.training_rows_known


def test_a_new_column_leaves_the_champion_its_own_columns(home: Home, champion: Candidate) -> None:
    more = parcels(800).assign(channel=lambda frame: np.where(frame.index % 3 == 0, "web", "shop"))
    found = candidate(home, more, rounds=12)
    assert [column.name for column in found.version.table.columns] == ["weight", "colour", "channel"]  # type: ignore[union-attr]
    check_scored(home, champion, found, ["weight", "colour"])
    assert found.evaluation.own_columns == "version 1 is scored on its own columns (new column: channel)"
    release = found.register()
    assert (release.model, release.alias) == ("parcels", "champion")
    assert "own columns (new column: channel)" in release.verdict.rules[0].explanation


def test_a_champion_is_scored_without_values_of_a_column_that_is_gone(
    home: Home, champion: Candidate
) -> None:
    found = candidate(home, parcels(800).drop(columns="colour"), rounds=12)
    check_scored(home, champion, found, ["weight"])
    assert "(gone: colour), without values in colour" in found.evaluation.own_columns


def test_a_champion_takes_the_numbers_of_a_column_that_is_text_by_now(
    home: Home, champion: Candidate
) -> None:
    found = candidate(home, parcels(), rounds=12, options=', types={"weight": "category"}')
    texts = test_rows(found)["feature.weight"]
    assert pa.types.is_string(texts.type)
    theirs = load_version(home, "parcels", "1")
    names = test_rows(found)["feature.colour"]
    rows = pa.table({"feature.weight": texts.cast(pa.float64()), "feature.colour": names})
    assert theirs.table is not None
    wanted = theirs.predict(encode(rows, theirs.table, "feature."))
    compared = ~np.isnan(scores(found))
    assert np.array_equal(scores(found)[compared], wanted[compared])
    assert "changed kind: weight (number -> text)" in found.evaluation.own_columns


def test_rows_that_can_not_be_found_again_are_said(home: Home, champion: Candidate) -> None:
    """Without the champion's dataset, its rows are not known by the columns that are left."""
    shutil.rmtree(champion.version.path)
    found = candidate(home, parcels().drop(columns="colour"), rounds=12)
    assert not found.evaluation.training_rows_known
    assert "is not known" in found.register().verdict.rules[0].explanation


def test_a_key_that_was_a_column_leaves_the_champions_rows_known(home: Home) -> None:
    numbered = parcels().assign(number=range(1000, 1600))
    first = candidate(home, numbered, rounds=3)
    assert first.register().alias == "champion"
    found = candidate(home, numbered, rounds=12, options=', key="number"')
    check_scored(home, first, found, ["weight", "colour"])


def test_rows_of_equal_old_columns_are_still_compared(home: Home) -> None:
    """Of few combinations of values, all are among the champion's training rows; the candidate learned them, too."""

    def rough(**more: Any) -> pd.DataFrame:
        return parcels().assign(weight=lambda frame: frame.weight.round(0), **more)

    assert candidate(home, rough(), rounds=3).register().alias == "champion"
    found = candidate(home, rough(scan=np.random.default_rng(1).normal(size=600)), rounds=12)
    assert found.evaluation.rows > 0.9 * found.version.rows("test")


def test_the_anchor_is_scored_on_its_own_columns(home: Home, champion: Candidate, tmp_path: Path) -> None:
    assert candidate(home, parcels(), rounds=12).register().alias == "champion"
    found = candidate(home, parcels().assign(scan=range(600)), rounds=12)
    client = connect(None, home)
    assert champion_of(client, "parcels") == "2"
    second, anchor = (_loaded(client, found.plan, found.version, number) for number in ("2", "1"))
    made = compare(found.plan, found.version, found.trained, second, anchor, tmp_path)
    assert made.anchor_version == "1"
    assert "version 1 is scored on its own columns (new column: scan)" in made.own_columns
    assert "version 2 is scored on its own columns (new column: scan)" in made.own_columns
    table = pq.read_table(made.predictions)
    theirs = load_version(home, "parcels", "1")
    assert theirs.table is not None
    wanted = theirs.predict(encode(test_rows(found), theirs.table, "feature."))
    compared = table["compared"].to_numpy()
    assert np.array_equal(table["anchor"].to_numpy().astype(np.float32)[compared], wanted[compared])


def test_a_table_with_none_of_the_champions_columns_is_refused(home: Home, champion: Candidate) -> None:
    other = parcels().rename(columns={"weight": "mass", "colour": "paint"})
    with pytest.raises(SettingError, match=r"none \(new columns: mass, paint; gone: weight, colour\)"):
        candidate(home, other, rounds=3)
