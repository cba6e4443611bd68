"""A registered model gets at most so many rows at once as its problem says."""

import numpy as np
import pytest

from tasks.model_formats.table_models import rows_of_table
from tasks.registry.safe_loading import _in_parts
from training.problems import problem_named
from training.records import TableColumn, TableSchema
from training.table_records import TextEncoding


@pytest.mark.parametrize("rows", [0, 1, 4, 5, 9])
def test_the_predictions_are_those_of_all_rows_in_order(rows: int) -> None:
    sizes: list[int] = []

    def predict(inputs: np.ndarray) -> np.ndarray:
        sizes.append(len(inputs))
        return 2 * inputs

    inputs = np.arange(rows, dtype=np.float32)
    assert np.array_equal(_in_parts(predict, 4)(inputs), 2 * inputs)
    assert max(sizes) <= 4
    assert sum(sizes) == rows


def test_a_diffusion_model_with_more_classes_gets_fewer_rows() -> None:
    denoising = problem_named("denoising")
    assert [denoising.rows_at_once(classes, None) for classes in (1, 2, 10, 1000)] == [128, 64, 12, 1]
    assert problem_named("classification").rows_at_once(1000, None) == 512


@pytest.mark.parametrize(
    ("length", "vocabulary", "rows"), [(64, 50_257, 20), (16, 30, 512), (512, 262_144, 1)]
)
def test_a_language_model_with_more_logits_gets_fewer_rows(length: int, vocabulary: int, rows: int) -> None:
    text = TextEncoding(length=length, vocabulary=vocabulary, padding=0, tokenizer="0" * 64, trained=False)
    table = TableSchema(target="", columns=(), text=text)
    assert problem_named("language_model").rows_at_once(2, table) == rows
    assert problem_named("classification").rows_at_once(2, table) == 512


@pytest.mark.parametrize(("columns", "rows"), [(4, 16_384), (10_000, 838)])
def test_trees_get_fewer_rows_of_a_table_with_more_columns(columns: int, rows: int) -> None:
    given = tuple(TableColumn(name=str(number), kind="number") for number in range(columns))
    table = TableSchema(target="y", columns=given)
    assert rows_of_table(table) == rows
    assert problem_named("regression").rows_at_once(1, table) == 512  # a network needs memory for its layers
