"""Inputs of a report: the records of one run, and the rows behind its predictions."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.run_words import RunWords
from training.records import DatasetVersion, Evaluation, Release, TrainedModel

Picture = NDArray[np.uint8]


@dataclass(frozen=True)
class Predicted:
    """True and predicted numbers of the compared test rows, both of shape (rows,)."""

    truth: NDArray[np.float64]
    candidate: NDArray[np.float64]


@dataclass(frozen=True)
class ReportInputs:
    """Everything that the report shows; the report reads nothing else.

    `settings` maps dotted names to values (:func:`training.settings.overrides.describe`), `ingredients` are those of
    the run key, and `changes` describes the ingredients that differ from the previous run. `commands` are
    (command, purpose) pairs.

    The examples are the rows of `evaluation.examples`, in that order. For images, `example_pictures` holds their uint8
    arrays of (channels, height, width). For a table, `example_rows` holds for each the values of the feature columns
    as text, in the order of `dataset.table.raw.columns`.

    `example_places` has, by row number, where the examples are in the source.

    `predicted` is given for a problem that predicts numbers. `importances` maps columns to their share of what all
    splits of a tree model gained; it is empty for other models. `generated`, of a model that generates images, is
    (classes, images of each, channels, height, width).

    Raises ValueError when the number of pictures or rows is not the number of examples.
    """

    release: Release
    trained: TrainedModel
    evaluation: Evaluation
    dataset: DatasetVersion
    settings: dict[str, Any]
    ingredients: dict[str, Any]
    changes: tuple[str, ...]
    example_pictures: tuple[Picture, ...]
    commands: tuple[tuple[str, str], ...]
    created: datetime
    words: RunWords = field(default_factory=RunWords)
    example_rows: tuple[tuple[str, ...], ...] = ()
    example_places: dict[int, str] = field(default_factory=dict)
    predicted: Predicted | None = None
    importances: dict[str, float] = field(default_factory=dict)
    generated: NDArray[np.uint8] | None = None

    def place_of(self, row: int) -> str:
        """Where a test row is in the source, so that a person finds it there; if that is not known, its number."""
        return self.example_places.get(row, f"test row {row}")

    def __post_init__(self) -> None:
        """Check that each example has a picture or a row; otherwise examples would get the captions of others."""
        shown = self.example_pictures if self.dataset.has_images else self.example_rows
        noun = "pictures" if self.dataset.has_images else "rows"
        examples = self.evaluation.examples
        if len(shown) != len(examples):
            raise ValueError(
                f"{len(shown)} {noun} for {len(examples)} examples; give one {noun[:-1]} for each"
            )
