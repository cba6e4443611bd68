"""Image generation by denoising: predict the noise in noisy images of a class, scored by the mean squared error.

Throughout, `targets` is int64 (rows,): the class of each image. `predictions` is float32 (rows, classes): the mean
squared error of the noise that a model predicts for an image when the model is told each of the classes. The error of
a row is that under its own class. The noise has variance 1, so a model that predicts no noise has the error 1.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from training.errors import TrainingError
from training.problems.base import Baseline, Predictions, Weights
from training.problems.mean_errors import MeanErrorMethods, mean_error
from training.problems.objectives.denoising import DenoisingObjective, rows_at_once
from training.problems.skewed_means import Numbers
from training.records import DatasetVersion, GateMetric, LargestError, ProblemName, Record, Score, TableSchema

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger("evergreen.evaluate")

Labels = npt.NDArray[np.int64]

_NO_NOISE_PREDICTED = 1.0  # error of a model that predicts 0, as the noise has variance 1
_WORST = 24


class ClassError(Record):
    """Mean error of a model on the test images of one class; None without such images."""

    name: str
    rows: int
    noise_error: float | None


class DenoisingScore(Score):
    """Scores of one denoising model on the test images; `low` to `high` is the interval of `noise_error`."""

    problem: ProblemName = "denoising"
    noise_error: float = Field(description="mean squared error of the predicted noise, whose variance is 1")
    classes: tuple[ClassError, ...]
    images_per_s: float


@dataclass(frozen=True)
class Denoising(DenoisingObjective, MeanErrorMethods):
    """Learn to remove noise from images of some classes, and so to generate such images.

    The source gives images with classes. `build_model(shape, classes)` is described in
    :meth:`training.problems.objectives.denoising.DenoisingObjective.adapted`. See
    :class:`training.problems.base.Problem` for the methods.
    """

    name: ProblemName = "denoising"
    metric_word: str = "noise error"
    metric_in_full: ClassVar[str] = "mean squared error of the predicted noise"
    row_word: ClassVar[str] = "image"
    model_type: ClassVar[str] = "diffusion"
    needs_model: ClassVar[str] = (
        "problem=Denoising() has no default model: give build_model, and trainer=Accelerate(train) with the loop that "
        "trains the model on noisy images, as the recipe `dreambooth` does"
    )
    score_record: ClassVar[type[Score]] = DenoisingScore
    finite: ClassVar[tuple[str, ...]] = ("noise_error", "low", "high")

    def rows_at_once(self, outputs: int, table: TableSchema | None) -> int:
        """Fewer rows for more classes, as each row takes several forward passes for each class."""
        del table
        return rows_at_once(outputs)

    def prediction_shape(self, version: DatasetVersion) -> tuple[int, ...]:
        """One error for each class."""
        return (len(version.classes),)

    def score(
        self,
        targets: Labels,
        predictions: Predictions,
        version: DatasetVersion,
        confidence: float,
        latency_ms: float,
        rows_per_s: float,
        weights: Weights | None = None,
    ) -> DenoisingScore:
        """See :func:`score`."""
        del weights
        return score(targets, predictions, version.classes, confidence, latency_ms, rows_per_s)

    def aligned(
        self, predictions: Predictions, classes: tuple[str, ...], version: DatasetVersion
    ) -> Predictions:
        """Columns in the order of the dataset's classes; a class that the model does not know has the error 1."""
        if classes == version.classes:
            return predictions
        log.warning(
            "the champion knows other classes: %s; it is compared on the rows as they are", ", ".join(classes)
        )
        errors = np.full((len(predictions), len(version.classes)), _NO_NOISE_PREDICTED, np.float32)
        for column, name in enumerate(version.classes):
            if name in classes:
                errors[:, column] = predictions[:, classes.index(name)]
        return errors

    def baseline(
        self,
        version: DatasetVersion,
        train_targets: Callable[[], Labels],
        rows: int,
        metric: GateMetric | None,
    ) -> Baseline:
        """The mean of the noise, 0, for every pixel."""
        del train_targets, metric
        errors = np.full((rows, len(version.classes)), _NO_NOISE_PREDICTED, np.float32)
        return Baseline(errors, "always answering the mean of the noise")

    def row_errors(self, targets: Labels, predictions: Predictions) -> Numbers:
        """See :func:`errors_of`."""
        return errors_of(targets, predictions)

    def row_columns(self, targets: Labels, predictions: Predictions) -> dict[str, npt.NDArray[Any]]:
        """The error of each row under its class, float64."""
        return {"": errors_of(targets, predictions)}

    def compared_errors(self, targets: Labels, column: npt.NDArray[Any]) -> Numbers:
        """The column itself, which has the errors."""
        del targets
        return column

    def findings(
        self, targets: Labels, candidate: Predictions, champion: Predictions | None, version: DatasetVersion
    ) -> dict[str, Any]:
        """The images with the candidate's largest errors: `truth` is the number of the class."""
        del champion, version
        errors = errors_of(targets, candidate)
        worst = np.argsort(-errors, kind="stable")[:_WORST]
        return {
            "largest_errors": tuple(
                LargestError(row=row, truth=float(targets[row]), predicted=float(errors[row]))
                for row in worst.tolist()
            )
        }

    def floor_value(self, score: Score) -> float:
        """1 - noise error: the share of the noise that the model removes, 0 for a model that predicts no noise."""
        return 1 - self._metric_of(score)

    def floor_text(self, value: float) -> tuple[str, str]:
        """The share with four decimals."""
        return "share of the noise removed", f"{value:.4f}"

    def purpose(self, rows: str, version: DatasetVersion) -> str:
        """The classes of which the model can generate images."""
        return f"Predicts the noise in noisy {rows}, of {self._of_classes(version)}, and so generates such images"

    def generated_images(
        self, module: "Callable[[], nn.Module]", version: DatasetVersion, count: int
    ) -> npt.NDArray[np.uint8]:
        """See :func:`training.problems.image_sampling.generated_images`."""
        from training.problems.image_sampling import generated_images

        return generated_images(module(), version, count)


def score(
    targets: Labels,
    predictions: Predictions,
    classes: tuple[str, ...],
    confidence: float,
    latency_ms: float,
    rows_per_s: float,
) -> DenoisingScore:
    """All scores of one model; `low` and `high` are those of :func:`mean_error`.

    Raises :class:`TrainingError` when an error is NaN or infinite, and ValueError for impossible shapes or targets.
    """
    _check(targets, predictions, len(classes))
    errors = errors_of(targets, predictions)
    low, mean, high = mean_error(errors, confidence)
    return DenoisingScore(
        noise_error=mean,
        low=low,
        high=high,
        classes=tuple(_of_class(errors[targets == number], name) for number, name in enumerate(classes)),
        confidence=confidence,
        latency_ms=latency_ms,
        images_per_s=rows_per_s,
    )


def errors_of(targets: Labels, predictions: Predictions) -> Numbers:
    """The error of each row under its own class."""
    own: Numbers = predictions[np.arange(len(targets)), targets].astype(np.float64)
    return own


def _of_class(errors: Numbers, name: str) -> ClassError:
    return ClassError(name=name, rows=len(errors), noise_error=float(errors.mean()) if len(errors) else None)


def _check(targets: Labels, predictions: Predictions, classes: int) -> None:
    if predictions.shape != (len(targets), classes):
        raise ValueError(f"predictions must have shape {(len(targets), classes)}, got {predictions.shape}")
    if not len(targets) or targets.min() < 0 or targets.max() >= classes:
        raise ValueError(f"targets must be numbers of classes below {classes}, and at least one")
    broken = np.flatnonzero(~np.isfinite(predictions).all(axis=1))
    if len(broken):
        raise TrainingError(
            f"test row {broken[0]}: the model's noise error is not finite ({len(broken)} of {len(predictions)} rows). "
            "Its weights or activations overflowed: lower the learning rate, clip gradients, or use "
            "training.precision=float32."
        )
