"""Too little memory for Arrow is no damage of a file."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training import errors
from training.data import row_digests
from training.data.preparation import raw_rows, row_function
from training.data.sources import parquet
from training.data.sources.parquet_files import open_parquet
from training.data.sources.table import Table
from training.data.tables import typed_copy
from training.errors import ResourceError


def out_of_memory(*_: Any, **__: Any) -> NoReturn:
    raise pa.lib.ArrowMemoryError("malloc of size 64 failed")


class NoMemory:
    """A Parquet file of which Arrow can read nothing for lack of memory."""

    __init__ = out_of_memory


def refuses_memory(call: Callable[[], Any]) -> None:
    with pytest.raises(MemoryError) as caught:
        call()
    assert isinstance(errors.classify(caught.value), ResourceError)


def test_of_a_source(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "rows.parquet")

    def read() -> None:
        with open_parquet(tmp_path / "rows.parquet"):
            out_of_memory()

    refuses_memory(read)


def test_of_images_in_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((4, 8, 8), np.uint8))
    pq.write_table(pa.table({"image": images, "label": ["a", "b"] * 2}), tmp_path / "rows.parquet")
    source = parquet.ParquetImages(tmp_path / "rows.parquet")
    files = source.fetch(tmp_path / "home")
    monkeypatch.setattr(parquet, "rows_to_read", out_of_memory)
    refuses_memory(lambda: list(source.read(files, "", [0])))


def test_of_raw_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pq, "ParquetFile", NoMemory)
    refuses_memory(lambda: list(raw_rows.raw_batches("rows.parquet")))
    refuses_memory(lambda: raw_rows.raw_table("rows.parquet"))


def test_of_a_typed_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.csv").write_text("a,y\n1,2\n2,3\n")
    source = Table(tmp_path / "rows.csv", "y")
    files = source.fetch(tmp_path / "home")
    monkeypatch.setattr(typed_copy, "_taken", out_of_memory)
    refuses_memory(lambda: list(source.read(files, "", [0])))


def test_of_the_digests_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pq, "ParquetFile", NoMemory)
    version: Any = SimpleNamespace(path="data", parts={"test": [SimpleNamespace(path="rows.parquet")]})
    refuses_memory(lambda: row_digests._digests(version, "test"))


def test_of_the_rows_that_a_function_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    without_memory = SimpleNamespace(
        Table=SimpleNamespace(from_pandas=out_of_memory), ArrowException=pa.ArrowException
    )
    function: Any = SimpleNamespace()
    monkeypatch.setattr(row_function, "_called", lambda *_: pd.DataFrame({"a": [1]}))
    rows = pa.table({"a": [1]})
    monkeypatch.setattr(row_function, "pa", without_memory)
    refuses_memory(lambda: row_function._table(function, rows, "row 1"))
