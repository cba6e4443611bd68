"""Real tables as raw rows, and what Ray's own preprocessors make of them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pytest

from training.data.preprocessing.applying import model_inputs
from training.data.preprocessing.fitting import fitted
from training.data.tables.encoding import encoded_values
from training.data.tables.values import TYPES, kind_of, text_of
from training.preprocessors import declared_steps
from training.records import TableColumn, TableSchema

Make = Callable[[], Any]


class Rows(NamedTuple):
    """Rows to fit on, and other rows, with the columns of `schema` in the types of part files."""

    schema: TableSchema
    train: pa.Table
    other: pa.Table

    def fitted(self, given: Any) -> TableSchema:
        """The table after preprocessors that Evergreen fits on the rows `train`."""
        return fitted(declared_steps("r", given), self.schema, self.read)

    def read(self, column: TableColumn) -> npt.NDArray[np.float64]:
        return encoded_values(self.train[column.name], column.kind, column)

    def ours(self, given: Any) -> npt.NDArray[np.float32]:
        """The rows `other` as a model takes them."""
        return model_inputs(self.other, self.fitted(given))

    def by_ray(self, preprocessor: Any) -> npt.NDArray[np.float32]:
        """The rows `other` after a preprocessor that Ray has fitted, in the order of Ray's columns."""
        return self.matrix(preprocessor.transform_batch(self.other.to_pandas()))

    def fitted_by_ray(self, preprocessor: Any) -> Any:
        import ray.data

        return preprocessor.fit(ray.data.from_arrow(self.train).repartition(3))

    def matrix(self, frame: pd.DataFrame) -> npt.NDArray[np.float32]:
        """A frame's numbers; text as the position in the categories of the column of this name."""
        matrices = []
        for name in frame.columns:
            values = frame[name]
            if len(values) and isinstance(values.iloc[0], list | np.ndarray):
                matrices.append(np.stack([np.asarray(vector, np.float64) for vector in values]))
            elif values.dtype.kind in "biuf":
                matrices.append(values.to_numpy(np.float64)[:, None])
            else:
                column = next(
                    candidate for candidate in self.schema.columns if name.startswith(candidate.name)
                )
                array = pa.array(values, TYPES[column.kind], from_pandas=True)
                matrices.append(encoded_values(array, column.kind, column)[:, None])
        return np.concatenate(matrices, axis=1).astype(np.float32)


def described(train: pa.Table, other: pa.Table, target: str = "target") -> Rows:
    """Rows with the schema that preparation gives them."""
    columns = []
    for field in train.schema:
        kind = kind_of(field.type)
        assert kind is not None
        texts = sorted(set(train[field.name].drop_null().to_pylist())) if kind == "category" else []
        columns.append(TableColumn(name=field.name, kind=kind, categories=tuple(map(text_of, texts))))
    return Rows(TableSchema(target=target, columns=tuple(columns)), train, other)


def diamonds() -> Rows:
    """2,000 diamonds, a constant column and a boolean one; missing values, and in the other rows unseen categories."""
    file = Path(os.environ.get("EVERGREEN_TEST_DATA", "")) / "diamonds.csv"
    if not file.is_file():
        pytest.skip("EVERGREEN_TEST_DATA names no folder with diamonds.csv")
    frame = pd.read_csv(file)[::27].reset_index(drop=True).drop(columns="price")
    frame["same"], frame["large"] = 7.0, frame.carat > 1
    frame.loc[::5, "depth"] = None
    frame.loc[::7, "cut"] = None
    frame.loc[1::6, "color"] = "unseen"  # in rows of odd numbers only
    frame.loc[3::8, "cut"] = "unseen"
    tables = [pa.Table.from_pandas(frame[start::2], preserve_index=False) for start in (0, 1)]
    train, other = (table.cast(_schema(table)) for table in tables)
    return described(train, other)


def breast_cancer() -> Rows:
    """The 30 numbers of 569 tumours, of scikit-learn."""
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).data
    tables = [pa.Table.from_pandas(frame[start::2], preserve_index=False) for start in (0, 1)]
    return described(*tables)


def _schema(table: pa.Table) -> pa.Schema:
    kinds = {field.name: kind_of(field.type) for field in table.schema}
    return pa.schema([pa.field(name, TYPES[kind]) for name, kind in kinds.items() if kind is not None])
