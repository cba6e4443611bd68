"""The problem `absolute_error`: predict a number, scored by the mean absolute error. A module of the product."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from training.problems.base import Targets
from training.problems.mean_errors import MeanErrorMethods, MeanErrorScore
from training.problems.skewed_means import Numbers
from training.records import DatasetVersion, ProblemName, Score

if TYPE_CHECKING:
    import torch


class AbsoluteErrorScore(MeanErrorScore):
    """Scores of one model on the test rows, in the unit of the target."""

    problem: ProblemName = "absolute_error"
    absolute_error: float


@dataclass(frozen=True)
class AbsoluteError(MeanErrorMethods):
    """Predict a number; a training minimises the absolute error, and so predicts the median."""

    name: ProblemName = "absolute_error"
    loss: str = "absolute_error"
    metric: str = "absolute_error"
    metric_word: str = "mean absolute error"
    target: Literal["class", "number"] = "number"
    smooths = False
    score_record: ClassVar[type[Score]] = AbsoluteErrorScore
    finite: ClassVar[tuple[str, ...]] = ("absolute_error", "low", "high", "removed")

    def row_errors(self, targets: Targets, predictions: npt.NDArray[Any]) -> Numbers:
        """The distance of prediction and target."""
        errors: Numbers = np.abs(predictions - targets)
        return errors

    def outputs(self, version: DatasetVersion) -> int:
        """One number."""
        del version
        return 1

    def torch_sums(
        self, output: "torch.Tensor", targets: "torch.Tensor", version: DatasetVersion, smoothing: float = 0.0
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        """Sum of absolute errors of the standardised target, and, in float64, of the target in its own unit."""
        import torch

        del smoothing
        mean, std = self._scale(version)
        wanted = (targets.to(torch.float64) - mean) / std
        errors = (output[:, 0].detach().to(torch.float64) - wanted) * std
        return (output[:, 0].float() - wanted.float()).abs().sum(), errors.abs().sum()

    def torch_targets(self, targets: "torch.Tensor", version: DatasetVersion) -> "torch.Tensor":
        """Standardised numbers, float32 (rows, 1)."""
        mean, std = self._scale(version)
        return ((targets.double() - mean) / std).float()[:, None]

    def torch_predictions(self, output: "torch.Tensor", version: DatasetVersion) -> "torch.Tensor":
        """Predictions (rows,) in the unit of the target."""
        mean, std = self._scale(version)
        return output[:, 0] * std + mean

    def reduced(self, total: float, rows: float) -> float:
        """The mean, from the sum of absolute errors."""
        return total / rows

    def _scale(self, version: DatasetVersion) -> tuple[float, float]:
        assert version.table is not None
        return version.table.target_mean, version.table.target_std


OBJECTIVE = AbsoluteError()
