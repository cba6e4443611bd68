"""Objective of a classification: cross-entropy; the metric is the accuracy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from training.records import DatasetVersion

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ClassificationObjective:
    """See :class:`training.problems.objectives.Objective`."""

    metric: str = "accuracy"
    target: Literal["class", "number"] = "class"

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

    def torch_predictions(self, output: "torch.Tensor", version: DatasetVersion) -> "torch.Tensor":
        """Probabilities (rows, classes)."""
        import torch

        del version
        return torch.softmax(output, dim=1)

    def reduced(self, total: float, rows: float) -> float:
        """Accuracy, from the number of hits."""
        return total / rows

    def xgboost_parameters(self, version: DatasetVersion) -> Mapping[str, Any]:
        """Softmax over the classes, also for two classes, so that each model gives (rows, classes)."""
        return {
            "objective": "multi:softprob",
            "num_class": len(version.classes),
            "eval_metric": ["mlogloss", "merror"],
        }

    def xgboost_results(self, values: Mapping[str, float]) -> tuple[float, float]:
        """The loss is the log loss in nats, the metric is the accuracy."""
        return values["mlogloss"], 1 - values["merror"]


OBJECTIVE = ClassificationObjective()
