"""Whether a candidate can be compared with a champion: the same problem, and the same inputs."""

from typing import Any

import numpy as np
import pytest
from small_tables import described, values

from tasks.checks.model_checks import check_comparable
from training.errors import SettingError
from training.records import DatasetVersion, ProblemName, TableColumn, TableSchema
from training.table_records import TextEncoding

VERSION = described(values())
INK = TableSchema(target="ink", columns=())


def texts(length: int, problem: ProblemName) -> DatasetVersion:
    encoding = TextEncoding(length=length, vocabulary=9, padding=0, tokenizer="0" * 64, trained=True)
    column = TableColumn(name="text", kind="category")
    schema = TableSchema(target="", columns=(column,), text=encoding)
    return VERSION.model_copy(update={"table": schema, "problem": problem})


IMAGES = VERSION.model_copy(update={"table": None, "shape": (1, 8, 8), "mean": (0.0,), "std": (1.0,)})


NUMBERS = IMAGES.model_copy(update={"table": INK, "problem": "regression"})


def compared(champion: DatasetVersion, version: DatasetVersion) -> None:
    check_comparable("m", "4", (champion.shape, champion.problem, champion.table), version)


def changed(index: int, **fields: Any) -> DatasetVersion:
    """The table with other fields in one column."""
    assert VERSION.table is not None
    columns = list(VERSION.table.columns)
    columns[index] = columns[index].model_copy(update=fields)
    return with_columns(*columns)


def with_columns(*columns: Any) -> DatasetVersion:
    return VERSION.model_copy(update={"table": TableSchema(target="price", columns=columns)})


def test_only_classifiers_of_text_may_read_other_lengths() -> None:
    compared(texts(64, "classification"), texts(16, "classification"))
    compared(texts(64, "language_model"), texts(64, "language_model"))
    with pytest.raises(
        SettingError, match=r"reads 64 tokens of each text, and the recipe 16.*data\.max_tokens=64"
    ):
        compared(texts(64, "language_model"), texts(16, "language_model"))


def test_other_columns_are_no_reason_and_neither_are_their_statistics_categories_and_order() -> None:
    assert VERSION.table is not None
    compared(VERSION, VERSION)
    compared(changed(1, categories=("blue", "mauve")), VERSION)
    compared(changed(0, mean=7.0), VERSION)
    compared(with_columns(*VERSION.table.columns[::-1]), VERSION)
    compared(with_columns(*VERSION.table.columns[:2]), VERSION)
    compared(changed(0, name="weight"), VERSION)
    compared(changed(2, kind="number"), VERSION)
    compared(IMAGES, IMAGES)
    compared(NUMBERS, NUMBERS)


@pytest.mark.parametrize(
    ("champion", "version", "message"),
    [
        (
            with_columns(changed(0, name="weight").table.columns[0]),  # type: ignore[union-attr]
            VERSION,
            r"takes columns of which the table has none \(new columns: .*; gone: weight\)",
        ),
        (IMAGES, VERSION, "takes images, the data are a table"),
        (VERSION, IMAGES, "takes a table, the data are images"),
        (described(values(), np.arange(40.0)), VERSION, "is a model for regression, .* is classification"),
        (IMAGES.model_copy(update={"shape": (3, 8, 8)}), IMAGES, r"takes images of \(3, 8, 8\)"),
        (NUMBERS.model_copy(update={"shape": (3, 8, 8)}), NUMBERS, r"takes images of \(3, 8, 8\)"),
        (NUMBERS, described(values(), np.arange(40.0)), "takes images, the data are a table"),
        (
            NUMBERS,
            NUMBERS.model_copy(update={"table": INK.model_copy(update={"target": "age"})}),
            "predicts 'ink', the recipe's target is 'age'",
        ),
    ],
)
def test_a_champion_that_can_not_be_compared_is_refused_with_the_remedy(
    champion: DatasetVersion, version: DatasetVersion, message: str
) -> None:
    with pytest.raises(
        SettingError, match=rf"tracking\.model: champion m version 4 .*{message}.*tracking\.model"
    ):
        compared(champion, version)


def test_other_columns_are_named_in_one_line_with_the_remedies() -> None:
    assert VERSION.table is not None
    size, colour, day = VERSION.table.columns
    theirs = with_columns(
        size.model_copy(update={"name": "weight"}), colour, day.model_copy(update={"kind": "number"})
    )
    words = check_comparable("m", "4", (theirs.shape, theirs.problem, theirs.table), VERSION)
    assert words == (
        "champion m version 4 is scored on its own columns (new column: size; gone: weight; changed kind: day (number "
        "-> date)), without values in weight and with values of day only where they are of its own kind. "
        "drop=['size', 'day'] in the recipe's Table leaves them out; repair the export if a column is gone or changed "
        "by mistake"
    )
    assert check_comparable("m", "4", (VERSION.shape, VERSION.problem, VERSION.table), VERSION) == ""
