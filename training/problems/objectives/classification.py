"""Objective of a classification: cross-entropy; the metric is the accuracy."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from training.records import DatasetVersion

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ClassificationObjective:
    """See :class:`training.problems.objectives.Objective`."""

    loss: str = "cross_entropy"
    metric: str = "accuracy"
    target: Literal["class", "number"] = "class"
    smooths = True

    def outputs(self, version: DatasetVersion) -> int:
        """One logit per class."""
        return len(version.classes)

    def torch_sums(
        self, output: "torch.Tensor", targets: "torch.Tensor", version: DatasetVersion, smoothing: float = 0.0
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        """Sum of cross-entropies in nats, and number of rows whose class is predicted."""
        import torch.nn.functional as functional

        del version
        loss = functional.cross_entropy(output.float(), targets, reduction="sum", label_smoothing=smoothing)
        return loss, (output.detach().argmax(1) == targets).sum()

    def torch_weighted_sums(
        self,
        output: "torch.Tensor",
        targets: "torch.Tensor",
        version: DatasetVersion,
        weights: "torch.Tensor",
        smoothing: float = 0.0,
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        """Sum of weighted cross-entropies in nats, and sum of the weights of rows whose class is predicted."""
        import torch.nn.functional as functional

        del version
        losses = functional.cross_entropy(
            output.float(), targets, reduction="none", label_smoothing=smoothing
        )
        hits = output.detach().argmax(1) == targets
        return (losses * weights.to(losses.dtype)).sum(), (hits * weights).sum()

    def torch_targets(self, targets: "torch.Tensor", version: DatasetVersion) -> "torch.Tensor":
        """Numbers of the classes (rows,), as for cross_entropy."""
        del version
        return targets

    def torch_predictions(self, output: "torch.Tensor", version: DatasetVersion) -> "torch.Tensor":
        """Probabilities (rows, classes)."""
        import torch

        del version
        return torch.softmax(output, dim=1)

    def reduced(self, total: float, rows: float) -> float:
        """Accuracy, from the number of hits."""
        return total / rows


OBJECTIVE = ClassificationObjective()
