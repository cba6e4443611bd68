"""Reads the rows that the report shows as examples, and predicted numbers, from a run's files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.report_page.inputs import Picture, Predicted
from tasks.report_page.wording import NOTHING
from training.data.dataset import open_columns
from training.data.manifest import read_parts
from training.data.tables.values import FEATURE
from training.problems import problem_of
from training.records import DatasetVersion, Evaluation

_LARGEST = 1e15  # larger integral numbers are written with an exponent
_LONGEST, _LONGEST_TEXT = 40, 300  # characters of a value, and of the text of a row


def pictures_of(version: DatasetVersion, rows: Sequence[int]) -> tuple[Picture, ...]:
    """The test images with these row numbers, uint8 (channels, height, width); empty for a table."""
    if not version.has_images:
        return ()
    images = open_columns(version, "test").inputs
    return tuple(np.array(images[row]) for row in rows)


def texts_of(version: DatasetVersion, rows: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    """The values of the feature columns, as text, of the test rows with these numbers; empty for images.

    Raises :class:`training.errors.DataError` for a damaged part file.
    """
    if version.table is None or version.has_images or not rows:
        return ()
    names = [f"{FEATURE}{column.name}" for column in version.table.raw.columns]
    longest = _LONGEST if version.text is None else _LONGEST_TEXT
    texts_by_row: dict[int, tuple[str, ...]] = {}
    first = 0
    for part in read_parts(version, "test", names):
        here = [row for row in rows if first <= row < first + len(part)]
        values = _readable(
            part.take(pa.array([row - first for row in here], pa.int64())).select(names)
        ).to_pylist()
        texts_by_row |= {
            row: tuple(_text(row_values[name], longest) for name in names)
            for row, row_values in zip(here, values, strict=True)
        }
        first += len(part)
    return tuple(texts_by_row[row] for row in rows)


def places_of(version: DatasetVersion, rows: Sequence[int]) -> dict[int, str]:
    """Where the test rows with these numbers are in the source: the file of an image, or file and row of a table.

    Reads one column of the part files that have such rows. Empty if that column can't be read: the page is shown
    without it, and damage is found by the steps that read the rows.
    """
    places: dict[int, str] = {}
    first = 0
    for part in version.parts["test"]:
        here = [row for row in rows if first <= row < first + part.rows]
        if here:
            try:
                where = pq.read_table(Path(version.path) / part.path, columns=["where"])["where"]
            except (OSError, pa.ArrowException, KeyError):
                return {}
            places |= {row: where[row - first].as_py() for row in here}
        first += part.rows
    return places


def _readable(rows: pa.Table) -> pa.Table:
    """The rows with times as text to the minute, because Python has no dates outside the years 1 to 9999."""
    for number, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type) or pa.types.is_date(field.type):
            texts = pc.replace_substring_regex(
                pc.cast(rows[number], pa.string()), r"^(.+) (\d\d:\d\d):.*$", r"\1 \2"
            )
            rows = rows.set_column(number, field.name, pc.replace_substring_regex(texts, " 00:00$", ""))
    return rows


def _text(value: Any, longest: int) -> str:
    """A value of a table; integral numbers without decimals, and a dash for a missing value."""
    if value is None or value != value:  # NaN is missing, too
        return NOTHING
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < _LARGEST else f"{value:.6g}"
    text = str(value)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def predicted_numbers(evaluation: Evaluation) -> Predicted | None:
    """True and predicted numbers of the compared test rows; None for a problem that predicts classes."""
    if problem_of(evaluation.candidate).target == "class":
        return None
    table = pq.read_table(evaluation.predictions, columns=["label", "candidate", "compared"])
    rows = table["compared"].to_numpy()
    truth, candidate = (np.asarray(table[name], np.float64)[rows] for name in ("label", "candidate"))
    return Predicted(truth, candidate)
