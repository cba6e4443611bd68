"""Rows of a table through reading, scoring and writing, with a function of NumPy as the model."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.inference.new_categories import NewCategories
from tasks.inference.outputs import Outputs
from tasks.inference.prediction_files import PredictionWriter
from tasks.inference.scoring import LoadedVersion, in_process
from tasks.inference.unlabelled_tables import Tables
from tasks.predict import PredictionSummary, write_good
from tasks.problems.classification.outputs import CLASSES_KEY, ClassOutputs
from tasks.problems.regression.outputs import NumberOutputs
from training.errors import DataError
from training.records import TableColumn, TableSchema

COLOURS = ("blue", "red")
SCHEMA = TableSchema(
    target="price",
    columns=(
        TableColumn(name="size", kind="number"),
        TableColumn(name="colour", kind="category", categories=COLOURS, counts=(1, 1)),
    ),
)


def price(rows: np.ndarray) -> np.ndarray:
    """Ten times the size, and 1 for red."""
    made: np.ndarray = (10 * rows[:, 0] + np.nan_to_num(rows[:, 1])).astype(np.float32)
    return made


def is_large(rows: np.ndarray) -> np.ndarray:
    """Probabilities of small and large: certain below 1 and above 2, and linear in between."""
    large = np.clip(rows[:, 0] - 1, 0, 1)
    return np.stack([1 - large, large], axis=1).astype(np.float32)


def scored(
    path: Path, output: Path, outputs: Outputs, predict: Any, skip_bad: bool = False
) -> tuple[list[dict[str, Any]], dict[str, Any], int, NewCategories]:
    """Rows and totals of the result, the number of rows left out, and the new categories."""
    served = LoadedVersion("prices", "3", Tables(SCHEMA), outputs, predict, None, "")
    writer, new = PredictionWriter(output, True, outputs, "prices", "3"), NewCategories()
    batches = in_process(served.reader.find(path), served)
    skipped = write_good(batches, writer, skip_bad, new, "rows")
    return pq.read_table(output).to_pylist(), writer.totals.summary(), skipped, new


def test_a_regression_gives_numbers(tmp_path: Path) -> None:
    file = tmp_path / "new.csv"
    file.write_text("colour,size\nred,0.5\nblue,2\n,-1\n")
    rows, totals, skipped, new = scored(file, tmp_path / "result.parquet", NumberOutputs(), price)
    about = {"model": "prices", "version": "3"}
    assert rows == [
        {"where": "new.csv:1", "prediction": 6.0, **about},
        {"where": "new.csv:2", "prediction": 20.0, **about},
        {"where": "new.csv:3", "prediction": -10.0, **about},
    ]
    assert pq.read_schema(tmp_path / "result.parquet").field("prediction").type == pa.float32()
    assert totals == {"mean": pytest.approx(16 / 3), "least": -10.0, "most": 20.0}
    assert (skipped, dict(new.rows)) == (0, {})


def test_a_classification_gives_class_and_probabilities(tmp_path: Path) -> None:
    file = tmp_path / "new.csv"
    file.write_text("colour,size\nred,1.25\nblue,9\nblue,1\n")
    rows, totals, *_ = scored(file, tmp_path / "result.parquet", ClassOutputs(("small", "large")), is_large)
    assert [(row["class"], row["probability"], row["probabilities"]) for row in rows] == [
        ("small", 0.75, [0.75, 0.25]),
        ("large", 1.0, [0.0, 1.0]),
        ("small", 1.0, [1.0, 0.0]),
    ]
    assert totals == {"counts": {"small": 2, "large": 1}}
    assert json.loads(pq.read_schema(tmp_path / "result.parquet").metadata[CLASSES_KEY]) == ["small", "large"]


def test_bad_rows_are_named_or_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, output = tmp_path / "new.csv", tmp_path / "result.parquet"
    file.write_text("colour,size\nred,1\ngreen,large\nred,\ngreen,3\n")

    def filled(rows: np.ndarray) -> np.ndarray:
        return price(np.nan_to_num(rows))

    with pytest.raises(DataError, match=rf"{file} row 2: column 'size' has 'large', not a finite number"):
        scored(file, output, NumberOutputs(), filled)
    with caplog.at_level(logging.WARNING, "evergreen.predict"):
        rows, totals, skipped, new = scored(file, output, NumberOutputs(), filled, skip_bad=True)
    assert [(row["where"], row["prediction"]) for row in rows] == [
        ("new.csv:1", 11.0),
        ("new.csv:3", 1.0),
        ("new.csv:4", 30.0),
    ]
    assert (skipped, totals["most"]) == (1, 30.0)
    assert dict(new.rows) == {"colour": 1}  # the row that was left out does not count
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["left out"]


def test_no_usable_row_is_no_result(tmp_path: Path) -> None:
    file = tmp_path / "new.csv"
    file.write_text("colour,size\nred,small\nred,large\n")
    with pytest.raises(DataError, match="none of the 2 rows can be used"):
        scored(file, tmp_path / "result.parquet", NumberOutputs(), price, skip_bad=True)


def test_a_number_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "new.csv"
    file.write_text("colour,size\nred,1\nred,\n")
    with pytest.raises(DataError, match=r"^new\.csv:2: the model gives a number that is not finite"):
        scored(file, tmp_path / "result.parquet", NumberOutputs(), price)


def test_the_warning_counts_rows_and_names_five_values_and_their_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "new.csv"
    file.write_text("colour,size\n" + "".join(f"c{number % 7},1\n" for number in range(20)) + "red,1\n")
    *_, new = scored(file, tmp_path / "result.parquet", NumberOutputs(), price)
    with caplog.at_level(logging.WARNING, "evergreen.predict"):
        new.warn()
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "column 'colour': 20 rows have a category that the model did not learn, such as 'c0' (new.csv:1), "
        "'c1' (new.csv:2), 'c2' (new.csv:3), 'c3' (new.csv:4), 'c4' (new.csv:5);"
    )


def test_more_rows_than_the_model_scores_at_once(tmp_path: Path) -> None:
    count = 40_000
    sizes = np.arange(count) / 7
    pq.write_table(
        pa.table({"size": sizes, "colour": ["red"] * count}), tmp_path / "new.parquet", row_group_size=25_000
    )
    seen = []

    def counted(rows: np.ndarray) -> np.ndarray:
        seen.append(len(rows))
        return price(rows)

    rows, totals, *_ = scored(tmp_path / "new.parquet", tmp_path / "out.parquet", NumberOutputs(), counted)
    assert [row["where"] for row in rows] == [f"new.parquet:{row + 1}" for row in range(count)]
    wanted = 10 * sizes.astype(np.float32) + 1
    assert np.array_equal([row["prediction"] for row in rows], wanted.astype(np.float32))
    assert totals["mean"] == pytest.approx(float(wanted.mean(dtype=float)))
    assert max(seen) == Tables(SCHEMA).rows_at_once < count


def test_the_summary_of_images_has_no_numbers() -> None:
    made = PredictionSummary(
        model="digits", version="1", output="o", rows=1, counts={"0": 1}, seconds=1.0, images_per_s=1.0
    )
    assert (made.unit, made.mean, made.least, made.most, made.unknown_categories) == (
        "images",
        None,
        None,
        None,
        {},
    )
