"""Inputs of a report: the records of one run, and the pictures of its worst mistakes."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.records import DatasetVersion, Evaluation, Release, TrainedModel

Picture = NDArray[np.uint8]


@dataclass(frozen=True)
class ReportInputs:
    """Everything that the report shows; the report reads nothing else.

    `settings` maps dotted names to values (:func:`training.settings.overrides.describe`), `ingredients` are those of
    the run key, and `changes` describes the ingredients that differ from the previous run. `mistakes` are uint8
    arrays of (channels, height, width), one for each of `evaluation.mistakes`, in that order. `commands` are
    (command, purpose) pairs.

    Raises ValueError when the number of pictures is not the number of mistakes.
    """

    release: Release
    trained: TrainedModel
    evaluation: Evaluation
    dataset: DatasetVersion
    settings: dict[str, Any]
    ingredients: dict[str, Any]
    changes: tuple[str, ...]
    mistakes: tuple[Picture, ...]
    commands: tuple[tuple[str, str], ...]
    created: datetime

    def __post_init__(self) -> None:
        """Check that each mistake has a picture; otherwise pictures would get the captions of other mistakes."""
        pictures, mistakes = len(self.mistakes), len(self.evaluation.mistakes)
        if pictures != mistakes:
            raise ValueError(
                f"mistakes: {pictures} pictures for {mistakes} mistakes; give one picture for each"
            )
