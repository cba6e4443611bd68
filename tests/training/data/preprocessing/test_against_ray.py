"""Each preprocessor that Evergreen fits and applies gives the numbers of Ray's own `fit` and `transform_batch`."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from ray.data.preprocessors import (
    Chain,
    Concatenator,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    SimpleImputer,
    StandardScaler,
)
from ray_tables import Make, Rows, breast_cancer, described, diamonds

NUMBERS = ["carat", "depth", "table", "same"]
CASES: dict[str, Make] = {
    "mean": lambda: SimpleImputer(["depth", "carat"], strategy="mean"),
    "most-frequent": lambda: SimpleImputer(["cut", "table", "large"], strategy="most_frequent"),
    "constant-number": lambda: SimpleImputer(["depth"], strategy="constant", fill_value=60),
    "constant-known": lambda: SimpleImputer(["cut"], strategy="constant", fill_value="Ideal"),
    "appended": lambda: SimpleImputer(["cut"], strategy="most_frequent", output_columns=["cut_full"]),
    "standard": lambda: StandardScaler(NUMBERS),
    "standard-appended": lambda: StandardScaler(["x", "y"], output_columns=["x2", "y2"]),
    "min-max": lambda: MinMaxScaler(NUMBERS),
    "max-abs": lambda: MaxAbsScaler(NUMBERS),
    "one-hot": lambda: OneHotEncoder(["color", "clarity", "table"]),
    "one-hot-most": lambda: OneHotEncoder(
        ["clarity", "color"], max_categories={"clarity": 3}, output_columns=["c", "color"]
    ),
    "ordinal": lambda: OrdinalEncoder(["color", "clarity", "large", "table"]),
    "concatenated": lambda: Concatenator(["z", "carat", "large"], dtype=np.float32),
    "chain": lambda: Chain(
        SimpleImputer(["depth"], strategy="mean"),
        SimpleImputer(["cut"], strategy="constant", fill_value="none"),
        StandardScaler(["depth"]),
        MinMaxScaler(["depth", "x"]),
        OneHotEncoder(["cut"]),
        OrdinalEncoder(["color"], output_columns=["color_number"]),
        StandardScaler(["color_number"]),
        Concatenator(["cut", "y", "depth"], output_column_name="all", flatten=True),
    ),
}


@pytest.fixture(scope="module")
def rows() -> Rows:
    return diamonds()


@pytest.mark.extended
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    "make",
    [
        # Each starts several executions of Ray Data.
        pytest.param(make, id=name, marks=() if name == "one-hot-most" else pytest.mark.slow)
        for name, make in CASES.items()
    ],
)
def test_the_numbers_are_those_of_ray(rows: Rows, make: Make) -> None:
    ours, theirs = rows.ours(make()), rows.by_ray(rows.fitted_by_ray(make()))
    assert ours.shape == theirs.shape
    assert np.allclose(ours, theirs, rtol=1e-6, atol=1e-9, equal_nan=True)


@pytest.mark.usefixtures("ray_session")
@pytest.mark.slow
def test_the_numbers_of_another_table_are_those_of_ray() -> None:
    rows = breast_cancer()
    names = list(rows.train.column_names)

    def make() -> Chain:
        return Chain(StandardScaler(names[:10]), MinMaxScaler(names[10:20]), MaxAbsScaler(names[20:]))

    assert np.allclose(rows.ours(make()), rows.by_ray(rows.fitted_by_ray(make())), rtol=1e-6, atol=1e-9)


def test_quantiles_are_values_of_the_column_and_scale_as_in_ray(rows: Rows) -> None:
    """Ray's own fit of this class takes quantiles from a random sketch of 32-bit numbers."""
    table = pa.table(
        {"a": [1.0, 2, 3, 4, 5, None], "b": [13.0, 5, 14, 2, 8, None], "same": [2.0] * 5 + [None]}
    )
    few = described(table, table)
    ready = RobustScaler(["a", "b", "same"])
    low_median_high = {"a": (2.0, 3.0, 4.0), "b": (5.0, 8.0, 13.0), "same": (2.0, 2.0, 2.0)}
    ready.stats_ = {
        f"{name}({column})": value
        for column, values in low_median_high.items()
        for name, value in zip(("low_quantile", "median", "high_quantile"), values, strict=True)
    }
    ours, theirs = few.ours(RobustScaler(["a", "b", "same"])), few.by_ray(ready)
    assert np.array_equal(ours, theirs, equal_nan=True)
    assert ours[:, 1].tolist()[:5] == [0.625, -0.375, 0.75, -0.75, 0]

    schema = rows.fitted(RobustScaler(["carat"], quantile_range=(0.1, 0.9)))
    assert schema.preprocessing is not None
    (scale,) = schema.preprocessing.made[0].operations
    ordered = np.sort(rows.train["carat"].to_numpy())
    assert scale.model_dump() == {
        "does": "scale",
        "shift": ordered[len(ordered) // 2],
        "divisor": ordered[int(0.9 * len(ordered))] - ordered[int(0.1 * len(ordered))],
    }


def test_statistics_do_not_depend_on_the_order_of_the_rows(rows: Rows) -> None:
    shuffled = rows.train.take(np.random.default_rng(0).permutation(len(rows.train)))
    given: list[Any] = [make() for make in (CASES["mean"], CASES["standard"], CASES["one-hot-most"])]
    assert rows.fitted(given) == rows._replace(train=shuffled).fitted(given)


def test_records_survive_json_with_the_same_bits(rows: Rows) -> None:
    schema = rows.fitted(CASES["chain"]())
    again = type(schema).model_validate_json(schema.model_dump_json())
    assert again == schema
    assert again.preprocessing is not None
    assert again.preprocessing.declared[3].preprocessor == "MinMaxScaler"
