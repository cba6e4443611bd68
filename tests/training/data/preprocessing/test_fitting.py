"""Steps that the columns of a table can't have, and values that no training row has."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from ray.data.preprocessors import (
    Concatenator,
    MaxAbsScaler,
    OneHotEncoder,
    OrdinalEncoder,
    SimpleImputer,
    StandardScaler,
)
from ray_tables import Rows, described

from training.data.preprocessing.applying import model_inputs
from training.data.preprocessing.fitting import check_steps
from training.errors import SettingError
from training.preprocessors import declared_steps

TRAIN = pa.table(
    {
        "size": pa.array([1.0, 2, 3, None, 4, 4]),
        "town": ["Ulm", "Bonn", "Ulm", None, "<5k", "Ulm"],
        "new": [True, False, None, True, True, True],
        "day": pa.array([86_400_000_000 * day for day in range(6)], pa.timestamp("us")),
        "empty": pa.array([None] * 6, pa.float64()),
        "color": ["red", "blue", "red", "red", "blue", "green"],
    }
)


@pytest.fixture
def rows() -> Rows:
    return described(TRAIN, TRAIN, target="price")


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "unknown": (lambda: StandardScaler(["sise"]), "no column 'sise' at this step; did you mean 'size'?"),
    "target": (lambda: StandardScaler(["price"]), "column 'price' is the target, which preprocessors do not"),
    "text": (lambda: StandardScaler(["town"]), "column 'town' is a category. Scale numbers only"),
    "mean-of-text": (
        lambda: SimpleImputer(["town"]),
        "column 'town' is a category. Use strategy=\"most_freq",
    ),
    "mean-of-boolean": (
        lambda: SimpleImputer(["new"]),
        "column 'new' is a boolean. Use strategy=\"most_freq",
    ),
    "date": (lambda: OneHotEncoder(["day"]), "column 'day' is a date. Encode text, booleans or numbers"),
    "fill-value": (
        lambda: SimpleImputer(["size"], strategy="constant", fill_value="none"),
        "fill_value='none' is no value of column 'size', a number",
    ),
    "taken": (
        lambda: StandardScaler(["size"], output_columns=["town"]),
        "output column 'town' exists already",
    ),
    "target-again": (
        lambda: StandardScaler(["size"], output_columns=["price"]),
        "output column 'price' exists already",
    ),
    "concatenated": (lambda: Concatenator(["size", "town"]), "column 'town' is a category. Encode it before"),
    "vector": (
        lambda: [OneHotEncoder(["color"]), StandardScaler(["color"])],
        "step 2, StandardScaler: column 'color' is a vector, made by OneHotEncoder",
    ),
    "gone": (
        lambda: [Concatenator(["size"]), StandardScaler(["size"])],
        "step 2, StandardScaler: the table has no column 'size' at this step",
    ),
}
BY_VALUES: dict[str, tuple[Callable[[], Any], str]] = {
    "missing": (
        lambda: OneHotEncoder(["town"]),
        "column 'town' has 1 missing values in the training rows. Put SimpleImputer",
    ),
    "empty": (lambda: StandardScaler(["empty"]), "column 'empty' has no value in the training rows"),
    "no-mean": (lambda: SimpleImputer(["empty"]), "column 'empty' has no value in the training rows"),
    "same-name": (
        lambda: [
            StandardScaler(["size"], output_columns=["color_red"]),
            OneHotEncoder(["color"]),
        ],
        "two columns would be named 'color_red'. Rename one of them by output_columns",
    ),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_step_that_kinds_of_columns_rule_out_is_refused_before_and_after_rows_are_read(
    rows: Rows, make: Callable[[], Any], message: str
) -> None:
    kinds = {column.name: column.kind for column in rows.schema.columns}
    for check in (
        lambda: check_steps(declared_steps("r", make()), "price", kinds),
        lambda: rows.fitted(make()),
    ):
        with pytest.raises(SettingError, match=r"^preprocessors: step \d, \w+: ") as caught:
            check()
        assert message in str(caught.value)


@pytest.mark.parametrize(("make", "message"), BY_VALUES.values(), ids=BY_VALUES.keys())
def test_a_step_that_values_rule_out_is_refused(rows: Rows, make: Callable[[], Any], message: str) -> None:
    kinds = {column.name: column.kind for column in rows.schema.columns}
    check_steps(declared_steps("r", make()), "price", kinds)
    with pytest.raises(SettingError) as caught:
        rows.fitted(make())
    assert message in str(caught.value)


def test_a_column_may_have_a_name_that_an_encoder_could_make_of_other_values() -> None:
    """Before the rows are read, the values of `zone` are unknown; in the second table, they make a column `zone_1`."""
    steps, kinds = [OneHotEncoder(["zone"])], {"zone": "number", "zone_1": "number"}
    check_steps(declared_steps("r", steps), "price", kinds)
    for values, names in (([2, 3, 4], ["zone_2", "zone_3", "zone_4", "zone_1"]), ([1, 2, 3], None)):
        table = pa.table({"zone": pa.array(values, pa.float64()), "zone_1": pa.array([0.5, 1, 2])})
        rows = described(table, table, target="price")
        if names is not None:
            assert [column.name for column in rows.fitted(steps).columns] == names
        else:
            with pytest.raises(SettingError, match="two columns would be named 'zone_1'"):
                rows.fitted(steps)


def test_a_name_that_two_steps_give_is_refused_before_rows_are_read() -> None:
    """The vector `all` has the column `size`."""
    steps = [Concatenator(["size"], "all"), MaxAbsScaler(["weight"], output_columns=["size"])]
    with pytest.raises(SettingError, match="two columns would be named 'size'"):
        check_steps(declared_steps("r", steps), "price", {"size": "number", "weight": "number"})


def test_a_constant_may_be_a_new_category_which_later_rows_may_have(rows: Rows) -> None:
    """Also after the fill, an unknown category is in no column of a one-hot encoding."""
    schema = rows.fitted(
        [SimpleImputer(["town"], strategy="constant", fill_value="none"), OneHotEncoder(["town"])]
    )
    names = [column.name for column in schema.columns]
    assert names == ["size", "town_‹5k", "town_Bonn", "town_Ulm", "town_none", "new", "day", "empty", "color"]
    other = TRAIN.slice(0, 4).set_column(1, "town", pa.array(["none", None, "unseen", "Ulm"]))
    inputs = model_inputs(other, schema)[:, 1:5]
    assert inputs.tolist() == [[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 1, 0]]


def test_missing_values_stay_missing_unless_a_step_fills_them(rows: Rows) -> None:
    schema = rows.fitted(
        [
            SimpleImputer(["new", "town"], strategy="most_frequent"),
            OrdinalEncoder(["town"]),
            MaxAbsScaler(["size", "day"]),
        ]
    )
    inputs = model_inputs(TRAIN, schema)
    assert np.isnan(inputs[3, 0])
    assert inputs[:, 0][[0, 4]].tolist() == [0.25, 1]
    assert inputs[:, 1].tolist() == [2, 1, 2, 2, 0, 2]  # "<5k", "Bonn", "Ulm"
    assert inputs[:, 2].tolist() == [1, 0, 1, 1, 1, 1]
    assert np.allclose(inputs[:, 3], np.arange(6) / 5)
    assert np.isnan(inputs[:, 4]).all()


def test_statistics_of_the_columns_are_over_the_rows_to_fit_on(rows: Rows) -> None:
    """A network takes a scaled or one-hot column as it is, so its mean is 0 and its deviation 1."""
    schema = rows.fitted(
        [
            StandardScaler(["size"]),
            SimpleImputer(["town"], strategy="most_frequent"),
            OneHotEncoder(["color"]),
        ]
    )
    by_name = {column.name: column for column in schema.columns}
    assert (by_name["size"].mean, by_name["size"].std, by_name["size"].missing) == (0, 1, 1)
    assert (by_name["color_red"].mean, by_name["color_red"].std) == (0, 1)
    assert dict(zip(by_name["town"].categories, by_name["town"].counts, strict=True)) == {
        "<5k": 1,
        "Bonn": 1,
        "Ulm": 4,
    }
    assert by_name["town"].missing == 0
    assert schema.raw == rows.schema


def test_a_record_whose_preprocessing_does_not_make_its_columns_is_refused(rows: Rows) -> None:
    schema = rows.fitted(StandardScaler(["size"]))
    said = schema.model_dump(mode="json")
    assert type(schema).model_validate(said) == schema
    for change in ({"made": said["preprocessing"]["made"][1:]}, {"columns": []}):
        with pytest.raises(ValueError, match="the preprocessing computes other columns than the table's"):
            type(schema).model_validate(said | {"preprocessing": said["preprocessing"] | change})
