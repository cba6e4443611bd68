"""The interface of a learning problem: what a model predicts, how it is trained, scored and compared.

Predictions are NumPy arrays with one entry per row. This package does not import torch at module level: every trainer
and every task of the pipeline uses it.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from training.problems.objectives import Objective
from training.records import (
    DatasetVersion,
    EpochMetrics,
    Evaluation,
    GateMetric,
    ProblemName,
    Score,
    TableSchema,
)

if TYPE_CHECKING:
    from torch import nn

BuildModel = Callable[[Any, int], "nn.Module"]
Predictions = npt.NDArray[np.float32]
Targets = npt.NDArray[Any]
Weights = npt.NDArray[np.float64]
Predict = Callable[[npt.NDArray[Any]], Predictions]


class Baseline(NamedTuple):
    """The model that has learned nothing: it answers the same for every row.

    `words` name it in a sentence, such as "always answering 'no'".
    """

    predictions: Predictions
    words: str


class Problem(Objective, Protocol):
    """A learning problem: the objective of a training, and how models are scored and described.

    What needs the libraries of the pipeline's tasks is in `tasks/problems/<name>/`: how the gate compares rows, what
    `predict` writes, and the sections of the report.

    `Predictions` of a classification are probabilities (rows, classes); of a regression they are numbers (rows,), in
    the unit of the target; of a language model (rows, 2): loss per token in nats, and number of tokens; of a denoising
    model (rows, classes): the error of the predicted noise under each class.
    """

    @property
    def name(self) -> ProblemName:
        """Name in manifests and plans."""

    @property
    def greater_is_better(self) -> bool:
        """Whether a larger value of the metric is better."""

    @property
    def metric_word(self) -> str:
        """The metric inside a sentence, such as "RMSE"."""

    @property
    def score_record(self) -> type[Score]:
        """The record of a model's scores; the metric is one of its fields."""

    @property
    def predicts_text(self) -> bool:
        """Whether the rows are texts that are themselves what a model predicts: their source has no target."""

    @property
    def needs_model(self) -> str:
        """Why a recipe must name its model, as an error message; empty: there is a default model."""

    def adapted(self, build_model: "BuildModel") -> "BuildModel":
        """`build_model` of a recipe, whose module then gives what the objective takes; most problems change nothing."""

    def generated_images(
        self, module: "Callable[[], nn.Module]", version: DatasetVersion, count: int
    ) -> npt.NDArray[np.uint8] | None:
        """`count` images of each of the first classes, made by the recipe's trained module.

        uint8 (classes, count, *image shape); the problem limits the number of classes.

        None for a problem whose models generate no images; `module` is then not called.
        """

    def rows_at_once(self, outputs: int, table: TableSchema | None) -> int:
        """Rows to give to a trained model at once, so that its forward pass needs a limited amount of memory.

        `outputs` is the number of values that the model predicts for a row; `table` describes its inputs, None for
        images with classes.
        """

    def prediction_shape(self, version: DatasetVersion) -> tuple[int, ...]:
        """Shape of the prediction for one row."""

    def score(
        self,
        targets: Targets,
        predictions: Predictions,
        version: DatasetVersion,
        confidence: float,
        latency_ms: float,
        rows_per_s: float,
        weights: Weights | None = None,
    ) -> Score:
        """All scores of a model on test rows.

        `weights` (rows,) have the mean 1: the scores are weighted means; None: all rows count the same. Only a problem
        whose objective is :class:`training.problems.objectives.WeighsRows` gets weights.

        Raises :class:`training.errors.TrainingError` when a prediction is not finite.
        """

    def baseline(
        self,
        version: DatasetVersion,
        train_targets: Callable[[], Targets],
        rows: int,
        metric: GateMetric | None,
    ) -> Baseline | None:
        """The model that has learned nothing but the targets of the train split, on `rows` test rows.

        Of all models that answer the same for every row, it is the best by the gate's metric. `train_targets` reads
        the targets. None for a problem for which no such model is defined.
        """

    def aligned(
        self, predictions: Predictions, classes: tuple[str, ...], version: DatasetVersion
    ) -> Predictions:
        """Predictions of a model with `classes`, with their columns in the order of the classes of `version`.

        Those of a model with the same classes are returned unchanged, finite or not: :meth:`score` names the row.
        """

    def row_columns(self, targets: Targets, predictions: Predictions) -> dict[str, npt.NDArray[Any]]:
        """What `predictions.parquet` keeps of a model's predictions: columns by the end of their name.

        The first column has the empty ending, and is what the model predicts for each row.
        """

    def findings(
        self, targets: Targets, candidate: Predictions, champion: Predictions | None, version: DatasetVersion
    ) -> dict[str, Any]:
        """Fields of an :class:`Evaluation` about single rows: paired counts, and the rows predicted worst.

        The row numbers are positions in `targets`.
        """

    def contradiction(self, evaluation: Evaluation) -> str | None:
        """Why the counts of an evaluation with a champion can't come from one comparison, or None."""

    def not_finite(self, score: Score) -> list[str]:
        """Names of the scores that are NaN or infinite."""

    def floor_value(self, score: Score) -> float:
        """The score that the gate compares with `gate.floor`, at most 1."""

    def floor_text(self, value: float) -> tuple[str, str]:
        """Name of that score, and `value` as text."""

    def figure(self, score: Score) -> str:
        """The main score, as text for a sentence or a table."""

    def spell(self, value: float) -> str:
        """A value of the metric, as text for a sentence or a table."""

    def further_scores(self, metrics: Mapping[str, float]) -> list[tuple[str, str]]:
        """(name, text) of further scores in the command's summary, from the metrics of a release."""

    def headline(self, score: Score) -> str:
        """The main score with its name and interval, for a log line."""

    @property
    def model_type(self) -> str:
        """The kind of model in MLflow, as MLflow's evaluators name kinds."""

    def purpose(self, rows: str, version: DatasetVersion) -> str:
        """What a model does, as a clause for people; `rows` describes its inputs: "grey images of 8 x 8 pixels"."""

    def in_words(self, score: Score, rows: str) -> str:
        """The scores for people who read a model's description; `rows` names the rows, such as "900 test rows"."""

    def against(self, candidate: Score, champion: Score) -> str:
        """Text that compares the main score of two models."""

    def release_metrics(
        self, candidate: Score, champion: Score | None, selected: EpochMetrics
    ) -> dict[str, float]:
        """Metrics of a release by name: test scores, and scores on the validation rows at the selected epoch."""

    def recounted(
        self, targets: Targets, columns: Mapping[str, npt.NDArray[Any]], evaluation: Evaluation
    ) -> dict[str, tuple[float, float]]:
        """(recorded, computed again) by name, from the columns of `predictions.parquet` of the compared rows."""
