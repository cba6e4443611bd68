"""Objective of a regression: the mean squared error; the metric is its root (RMSE), in the unit of the target."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from training.records import DatasetVersion

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class RegressionObjective:
    """See :class:`training.problems.objectives.Objective`."""

    loss: str = "squared_error"
    metric: str = "rmse"
    target: Literal["class", "number"] = "number"
    smooths = False

    def outputs(self, version: DatasetVersion) -> int:
        """One number: the prediction, standardised as the target is."""
        del version
        return 1

    def torch_sums(
        self, output: "torch.Tensor", targets: "torch.Tensor", version: DatasetVersion, smoothing: float = 0.0
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        """Sum of squared errors of the standardised target, and, in float64, of the target in its own unit.

        `output` has the shape (rows, 1), and `targets` (rows,) is in the unit of the target. `smoothing` has no
        meaning for numbers and is ignored.
        """
        del smoothing
        losses, errors = _squares(output, targets, version)
        return losses.sum(), errors.sum()

    def torch_weighted_sums(
        self,
        output: "torch.Tensor",
        targets: "torch.Tensor",
        version: DatasetVersion,
        weights: "torch.Tensor",
        smoothing: float = 0.0,
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        """The sums of :meth:`torch_sums`, of squared errors that are multiplied by the rows' weights."""
        del smoothing
        losses, errors = _squares(output, targets, version)
        return (losses * weights.to(losses.dtype)).sum(), (errors * weights).sum()

    def torch_targets(self, targets: "torch.Tensor", version: DatasetVersion) -> "torch.Tensor":
        """Standardised numbers, float32, of the shape of the output: (rows, 1), as for mse_loss."""
        mean, std = _scale(version)
        return ((targets.double() - mean) / std).float()[:, None]

    def torch_predictions(self, output: "torch.Tensor", version: DatasetVersion) -> "torch.Tensor":
        """Predictions (rows,) in the unit of the target."""
        mean, std = _scale(version)
        return output[:, 0] * std + mean

    def reduced(self, total: float, rows: float) -> float:
        """Root mean squared error, from the sum of squared errors."""
        return math.sqrt(total / rows)


def _squares(
    output: "torch.Tensor", targets: "torch.Tensor", version: DatasetVersion
) -> "tuple[torch.Tensor, torch.Tensor]":
    """The squared error of each row: of the standardised target, and, in float64, of the target in its own unit."""
    import torch

    mean, std = _scale(version)
    wanted = (targets.to(torch.float64) - mean) / std
    given = output[:, 0]
    errors = (given.detach().to(torch.float64) - wanted) * std
    return (given.float() - wanted.float()).square(), errors.square()


def _scale(version: DatasetVersion) -> tuple[float, float]:
    """Mean and standard deviation of the target over the train split."""
    if version.table is None:
        raise ValueError(
            f"dataset {version.name}: a regression needs the mean and deviation of a target, and it has classes"
        )
    return version.table.target_mean, version.table.target_std


OBJECTIVE = RegressionObjective()
