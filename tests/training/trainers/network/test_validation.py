"""Validation takes at most as many rows at once as the objective says, and the sums are those of all rows."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from training.data.dataset import open_columns
from training.problems.objectives.classification import ClassificationObjective
from training.recipe_metrics import RecipeMetrics
from training.records import DatasetVersion
from training.trainers.network.validation import rows_at_once, sums_over


class Limited(ClassificationObjective):
    def most_rows(self, version: DatasetVersion) -> int:
        del version
        return 7


def sums(
    objective: ClassificationObjective,
    version: DatasetVersion,
    forward: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    columns, device = open_columns(version, "test"), torch.device("cpu")
    metrics = RecipeMetrics("plain", {}, version, device)
    return sums_over(
        forward, objective, version, device, columns, np.arange(len(columns)), lambda: None, metrics
    )


def test_an_objective_limits_the_rows_of_a_forward_pass(small_version: DatasetVersion) -> None:
    torch.manual_seed(0)
    linear, sizes = torch.nn.Linear(64, 10), []

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        sizes.append(len(inputs))
        return linear(inputs.flatten(1).float())

    with torch.no_grad():
        few = sums(Limited(), small_version, forward)
        assert max(sizes) == 7
        whole = sums(ClassificationObjective(), small_version, forward)
    assert rows_at_once(ClassificationObjective(), small_version) == 512
    assert max(sizes) > 7
    assert few[0].item() == pytest.approx(whole[0].item(), rel=1e-6)
    assert few[1].item() == whole[1].item()
