"""The interface of a model format: how a finished model is logged to MLflow, checked, loaded and compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from training.errors import TrainingError
from training.problems.base import Predict
from training.recipe import Recipe
from training.records import DatasetVersion, ProblemName, TableSchema, TrainedModel
from training.seams import FORMATS, part_named
from training.settings.schema import Settings

_SAME = 1e-4  # largest allowed difference between a prediction of the trained and of the registered model
_TRIED_BATCHES = (1, 3, 64)
_FORMAT = "format"


class ModelFormat(Protocol):
    """The names that the module of a model format has to define.

    `FLAVOR` is MLflow's name of the format. `MODEL_FILE` is the path of the model inside a registered model's folder,
    and `WEIGHTS_FILE` the path of the trained weights, None if there is no separate file. The sha256 of both files is
    recorded when a version is registered. A format whose models need no memory for a row but its inputs and outputs, as
    trees, may define `SCORES_MANY_ROWS = True`.
    """

    FLAVOR: str
    MODEL_FILE: Path
    WEIGHTS_FILE: Path | None

    def log_model(
        self,
        run_id: str,
        recipe: Recipe,
        version: DatasetVersion,
        trained: TrainedModel,
        example: npt.NDArray[Any],
        metadata: dict[str, Any],
    ) -> str:
        """Log the model under the MLflow run; returns its URI. `example` holds a few rows of inputs.

        Plain MLflow can load the logged model without Evergreen; loaded so, a model on a table takes raw columns.
        Raises :class:`TrainingError` when the model can't be logged.
        """

    def find_foreign(
        self, folder: Path, flavors: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> str | None:
        """Describe the first thing in a registered model's folder that Evergreen would not have written.

        Returns None if there is no such thing. `flavors` and `metadata` are the sections with these names of the
        model's `MLmodel` file.
        """

    def load(self, folder: Path) -> Predict:
        """A function from inputs to predictions, from a folder for which :meth:`find_foreign` returns None.

        Runs no code that comes with the model.
        """


@dataclass(frozen=True)
class Registered:
    """A registered version that was checked and loaded, with the description of its inputs in its metadata.

    `predict` takes inputs as in :class:`training.data.columns.Columns`. `table` describes the columns of a table, or
    the target of images with numbers to predict. `shape` is the shape of one row of inputs. `outputs` is the number of
    values that the model predicts for a row. `tokenizer` is the JSON of the tokenizer of a model on text. `threshold`
    is the probability of the second of two classes from which it is the answer; None: the likelier class is.
    """

    predict: Predict
    problem: ProblemName
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    table: TableSchema | None
    outputs: int
    tokenizer: str = ""
    threshold: float | None = None


def format_named(name: str) -> ModelFormat:
    """The format with this name in :data:`training.seams.FORMATS`."""
    modules = {known: part.module for known, part in FORMATS.items()}
    return cast(ModelFormat, part_named(modules, name))


def format_name(settings: Settings) -> str:
    """Name of the format in which a run registers its model: the trainer's first, unless the settings name another."""
    return settings.tracking.model_format or settings.training.FORMATS[0]


def format_of(settings: Settings) -> ModelFormat:
    """The format in which a run registers its model."""
    return format_named(format_name(settings))


def format_in(flavors: Mapping[str, Any], metadata: Mapping[str, Any]) -> ModelFormat | None:
    """The format of a registered model, by the sections with these names of its `MLmodel` file; None if unknown.

    Models of earlier versions of Evergreen do not name their format: the first format with their flavor is theirs.
    """
    recorded = metadata.get(_FORMAT)
    names = FORMATS if recorded is None else [name for name in FORMATS if name == recorded]
    return next(
        (model_format for model_format in map(format_named, names) if model_format.FLAVOR in flavors), None
    )


def metadata_of(version: DatasetVersion, model_format: str, threshold: float | None = None) -> dict[str, Any]:
    """The metadata for a registered model's `MLmodel` file: its format, its inputs and its outputs.

    `transform` is the digest of the function that changes the rows before the model takes them, if there is one, and
    `threshold` that of a classifier of two classes (:mod:`training.problems.thresholds`): the model gives
    probabilities, and who takes a class from them needs it.
    """
    metadata: dict[str, Any] = {
        _FORMAT: model_format,
        "classes": list(version.classes),
        "problem": version.problem,
    }
    if version.transform:
        metadata["transform"] = version.transform
    if threshold is not None:
        metadata["threshold"] = threshold
    return metadata | ({"table": version.table.model_dump(mode="json")} if version.table else {})


def check_same(trained: Predict, registered: Predict, inputs: npt.NDArray[Any]) -> None:
    """Compare predictions of the registered and the trained model at several batch sizes; rows are repeated for them.

    Raises :class:`TrainingError` when a prediction differs by more than :data:`_SAME`, relative to the largest
    prediction of its column if it exceeds 1, else absolutely (as for probabilities).
    """
    for rows in _TRIED_BATCHES:
        batch = np.resize(inputs, (rows, *inputs.shape[1:]))
        ours, theirs = trained(batch), registered(batch)
        # By column: a language model also predicts a count.
        scale = np.maximum(1.0, np.abs(ours).max(axis=0, initial=0.0))
        difference = float((np.abs(theirs - ours) / scale).max(initial=0.0))
        if not difference <= _SAME:
            raise TrainingError(
                f"the registered model differs from the trained one by {difference:.2g} in a prediction (batch of "
                f"{rows}; at most {_SAME:g} is allowed). It was not promoted; the trained weights are kept."
            )
