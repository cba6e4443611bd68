"""How a run's dataset input describes a table: columns with their types, rows, and missing values."""

import json

from table_page_sample import schema, table_version

from tasks.trackers.provenance import _LONGEST_SCHEMA, _profile, _schema, _schema_text


def test_the_columns_of_a_regression_have_types() -> None:
    columns = {
        column["name"]: column for column in _schema(table_version("regression", schema()))["mlflow_colspec"]
    }
    assert list(columns)[-1] == "progression"
    assert (columns["age"]["type"], columns["age"]["required"]) == ("double", True)
    assert (columns["sex"]["type"], columns["sex"]["required"]) == ("string", False)  # two values are missing
    assert columns["progression"]["type"] == "double"


def test_a_table_with_too_many_columns_for_mlflow_is_described_by_its_first_columns() -> None:
    from mlflow.utils.validation import MAX_DATASET_SCHEMA_SIZE

    assert _LONGEST_SCHEMA == MAX_DATASET_SCHEMA_SIZE
    few = schema()
    first = few.columns[0]
    columns = tuple(first.model_copy(update={"name": f"gene {number}"}) for number in range(20_000))
    wide = few.model_copy(update={"columns": columns})
    text = _schema_text(table_version("regression", wide))
    kept = [column["name"] for column in json.loads(text)["mlflow_colspec"]]
    assert len(text) <= _LONGEST_SCHEMA
    assert 5000 < len(kept) < 20_000
    assert kept == [f"gene {number}" for number in range(len(kept))]
    version = table_version("regression", few)
    assert json.loads(_schema_text(version)) == _schema(version)


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
