"""How a run's dataset input describes a table: columns with their types, rows, and missing values."""

from table_page_sample import schema, table_version

from tasks.trackers.provenance import _profile, _schema


def test_the_columns_of_a_regression_have_types() -> None:
    columns = {one["name"]: one for one in _schema(table_version("regression", schema()))["mlflow_colspec"]}
    assert list(columns)[-1] == "progression"
    assert (columns["age"]["type"], columns["age"]["required"]) == ("double", True)
    assert (columns["sex"]["type"], columns["sex"]["required"]) == ("string", False)  # two values are missing
    assert columns["progression"]["type"] == "double"


def test_the_profile_of_a_table_counts_rows_and_values() -> None:
    version = table_version("regression", schema())
    train, test = (_profile(version, split) for split in ("train", "test"))
    assert train["num_rows"] == version.rows("train")
    assert train["num_elements"] == 10 * version.rows("train")
    assert train["missing_values"] == {"sex": 2}
    assert "missing_values" not in test  # the schema describes the train split
    assert "rows_by_class" not in train
    classes = _profile(table_version("classification", schema(), ("0", "1")), "test")
    assert list(classes["rows_by_class"]) == ["0", "1"]
