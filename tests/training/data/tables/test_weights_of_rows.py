"""The column of weights of a table: stored beside the rows, no input, and refused where a value is no weight."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_runs import prepared

from training.data.dataset import open_columns
from training.data.sources.table import Table
from training.data.tables.typed_copy import read_notes
from training.errors import DataError, SettingError
from training.storage.paths import Home

ROWS = 120


def table(folder: Path, weights: Any, name: str = "loans.csv") -> Path:
    random = np.random.default_rng(3)
    columns = {
        "income": random.normal(size=ROWS).round(3),
        "repaid": np.where(random.random(ROWS) < 0.5, "yes", "no"),
        "counts": weights,
    }
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return folder / name


def test_weights_are_stored_beside_the_rows_and_are_no_input(home: Home, tmp_path: Path) -> None:
    given = np.arange(ROWS) / 4
    weighted = prepared(home, Table(table(tmp_path, given), "repaid", weight="counts"), "loans")
    dropped = prepared(home, Table(table(tmp_path, given), "repaid", drop=["counts"]), "plain")
    assert weighted.table is not None
    assert weighted.table.weight == "counts"
    assert [column.name for column in weighted.table.columns] == ["income"]
    found = []
    for split in ("train", "test"):
        with_weights, without = open_columns(weighted, split), open_columns(dropped, split)
        assert np.array_equal(with_weights.inputs, without.inputs)
        assert np.array_equal(with_weights.digests, without.digests)  # the same rows, in the same splits
        assert without.weights is None
        assert with_weights.weights is not None
        found += with_weights.weights.tolist()
    assert sorted(found) == given.tolist()


def test_the_weights_of_a_row_stay_with_the_row(home: Home, tmp_path: Path) -> None:
    file = table(tmp_path, np.arange(ROWS))
    incomes = [float(row["income"]) for row in csv.DictReader(file.open())]
    columns = open_columns(prepared(home, Table(file, "repaid", weight="counts"), "loans"), "train")
    assert columns.weights is not None
    assert np.allclose(columns.inputs[:, 0], np.array(incomes)[columns.weights.astype(int)], atol=1e-6)
    chosen = columns.selected(columns.weights >= 60, tmp_path)
    assert chosen.weights is not None
    assert chosen.weights.min() >= 60


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("-1", "column 'counts' is -1; weight='counts' needs a number of at least 0"),
        ("inf", "column 'counts' has 'inf', not a finite number of 32 bits. weight='counts' needs a number"),
        ("", "column 'counts' is empty; weight='counts' needs a value"),
        ("heavy", "column 'counts' has 'heavy'"),
    ],
)
def test_a_value_that_is_no_weight_is_refused_with_its_row(
    home: Home, tmp_path: Path, value: str, message: str
) -> None:
    weights = ["1"] * ROWS
    weights[41] = value
    with pytest.raises(DataError) as refused:
        Table(table(tmp_path, weights), "repaid", weight="counts").fetch(home.sources)
    assert f"loans.csv row 42: {message}" in str(refused.value)


def test_a_weight_that_is_not_finite_is_refused_in_parquet(home: Home, tmp_path: Path) -> None:
    rows = pa.table({"a": [1.0, 2.0, 3.0], "y": ["u", "v", "u"], "w": [1.0, 0.0, float("inf")]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"rows\.parquet row 3: .*'w'.*not a finite number"):
        Table(tmp_path / "rows.parquet", "y", weight="w").fetch(home.sources)


def test_rows_that_all_weigh_nothing_are_refused(home: Home, tmp_path: Path) -> None:
    source = Table(table(tmp_path, [0] * ROWS), "repaid", weight="counts")
    with pytest.raises(DataError, match=r"column 'counts', the weight, is 0 in all train rows"):
        prepared(home, source, "loans")


def test_a_column_has_one_use() -> None:
    with pytest.raises(
        SettingError, match=r"column 'y' has two uses among target, split, group, time and weight"
    ):
        Table("x.csv", "y", weight="y")
    with pytest.raises(SettingError, match=r"column 'w' is in use; take it out of drop"):
        Table("x.csv", "y", weight="w", drop=["w"])


def test_a_weight_that_is_not_there_is_refused(home: Home, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no column 'count', which Table\(weight=\.\.\.\) names"):
        Table(table(tmp_path, [1] * ROWS), "repaid", weight="count").fetch(home.sources)


def test_a_source_without_weights_keeps_its_identity(home: Home, tmp_path: Path) -> None:
    """The option itself changes neither the source's digest nor its notes."""
    file = table(tmp_path, [1] * ROWS)
    source = Table(file, "repaid", drop=["counts"])
    assert "weight" not in source._chosen()
    assert read_notes(Path(source.fetch(home.sources).root)).weight is None
