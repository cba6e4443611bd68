"""The tables that are installed with scikit-learn: the same rows and names of columns as its loaders give."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes

from training.data.sources.sklearn_tables import BundledTable
from training.errors import SettingError


def rows_of(name: str, folder: Path) -> pa.Table:
    source = BundledTable(name)
    files = source.fetch(folder)
    assert (files.kind, files.origin) == ("table", f"scikit-learn's {name}")
    assert list(source.splits(files)) == [""]
    return pa.Table.from_batches(list(source.read(files, "", range(source.count(files, "")))))


def test_diabetes_is_the_table_of_scikit_learn(tmp_path: Path) -> None:
    rows, wanted = rows_of("diabetes", tmp_path), load_diabetes(scaled=False)
    columns = [rows[f"feature.{name}"].to_numpy().astype(float) for name in wanted.feature_names]
    np.testing.assert_array_equal(np.stack(columns, axis=1), wanted.data)
    np.testing.assert_array_equal(rows["label"].to_numpy(), wanted.target)
    assert rows["feature.sex"].type == pa.string()


def test_breast_cancer_is_the_table_of_scikit_learn(tmp_path: Path) -> None:
    rows, wanted = rows_of("breast_cancer", tmp_path), load_breast_cancer()
    columns = [rows[f"feature.{name}"].to_numpy() for name in wanted.feature_names]
    np.testing.assert_array_equal(np.stack(columns, axis=1), wanted.data)
    assert rows["label"].to_pylist() == wanted.target_names[wanted.target].tolist()


def test_an_unknown_name_is_refused_with_the_known_names() -> None:
    with pytest.raises(SettingError, match="no such table; take one of diabetes, breast_cancer"):
        BundledTable("wine")
