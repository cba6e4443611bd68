"""`plan` proposes the column that fits as the key of a table."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.data.sources.table import Table
from training.data.tables.key_proposal import proposed_key

ROWS = 60


def proposed(folder: Path, drop: tuple[str, ...] = (), **columns: Any) -> str | None:
    """The proposal for a CSV of a feature `age`, the target `price`, and `columns`."""
    table = {
        "age": [20 + row % 7 for row in range(ROWS)],
        **columns,
        "price": [row * 1.5 for row in range(ROWS)],
    }
    lines = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values(), strict=True))]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    files = Table(folder / "rows.csv", target="price", drop=drop).fetch(folder / "sources")
    return proposed_key(files, drop)


@pytest.mark.parametrize("name", ["id", "customer_id", "customerId", "ID", "order-number", "uuid"])
def test_distinct_integers_with_the_name_of_a_key_are_proposed(name: str, tmp_path: Path) -> None:
    assert proposed(tmp_path, **{name: range(7, 7 + 3 * ROWS, 3)}) == name


def test_a_dropped_column_of_texts_is_proposed(tmp_path: Path) -> None:
    names = [f"parcel {row}" for row in range(ROWS)]
    assert proposed(tmp_path, drop=("label",), label=names) == "label"
    other = tmp_path / "other"
    other.mkdir()
    assert proposed(other, drop=("label", "id"), label=names, id=range(ROWS)) == "id"


@pytest.mark.parametrize(
    "values",
    [
        [row // 2 for row in range(ROWS)],
        ["", *range(1, ROWS)],
        [row + 0.5 for row in range(ROWS)],
    ],
    ids=["double", "missing", "fractions"],
)
def test_double_missing_and_fractional_values_are_no_key(values: list[Any], tmp_path: Path) -> None:
    assert proposed(tmp_path, id=values) is None


def test_a_measure_with_distinct_values_is_no_key(tmp_path: Path) -> None:
    assert proposed(tmp_path, income=range(1000, 1000 + ROWS)) is None


@pytest.mark.parametrize(("kind", "name"), [(pa.int64(), "id"), (pa.float64(), None)])
def test_in_parquet_an_integer_is_proposed_and_a_float_is_not(
    kind: Any, name: str | None, tmp_path: Path
) -> None:
    numbers = pa.array(range(ROWS), pa.int64())
    columns = {"id": numbers.cast(kind), "age": [row % 7 for row in range(ROWS)], "price": numbers}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    files = Table(tmp_path / "rows.parquet", target="price").fetch(tmp_path / "sources")
    assert proposed_key(files, ()) == name


def test_a_key_that_is_double_in_another_file_is_not_proposed(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    for file in "ab":
        lines = [f"{row},{row % 5},{row}{file == 'a':d}" for row in range(ROWS)]
        (tmp_path / "rows" / f"{file}.csv").write_text("\n".join(["id,age,price", *lines]))
    files = Table(tmp_path / "rows", target="price").fetch(tmp_path / "sources")
    assert proposed_key(files, ()) is None
