"""Validation takes at most as many rows at once as the objective says, and the sums are those of all rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from training.data.dataset import open_columns
from training.problems.objectives.classification import ClassificationObjective
from training.recipe_metrics import RecipeMetrics
from training.records import DatasetVersion
from training.settings.schema import Settings
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
        forward,
        objective,
        version,
        device,
        columns,
        np.arange(len(columns)),
        rows_at_once(objective, version, Settings()),
        lambda: None,
        metrics,
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
    assert max(sizes) > 7
    assert few[0].item() == pytest.approx(whole[0].item(), rel=1e-6)
    assert few[1].item() == whole[1].item()


@pytest.mark.parametrize(
    ("training", "workers", "rows"),
    [
        ({"global_batch_size": 8}, 2, 16),
        ({"global_batch_size": 8}, 0, 32),
        ({"global_batch_size": 64, "accumulation_steps": 4}, 2, 32),
        ({"global_batch_size": 16, "virtual_shards": 4}, 2, 16),
        ({"global_batch_size": 2}, 2, 4),
        ({"global_batch_size": 4096}, 2, 512),
    ],
)
def test_a_pass_of_a_validation_is_not_much_larger_than_one_of_the_training(
    small_version: DatasetVersion, training: dict[str, Any], workers: int, rows: int
) -> None:
    """Otherwise it may not fit into memory, and the watchdog may take a slow pass for a worker that hangs."""
    settings = Settings.model_validate({"training": training, "scaling": {"num_workers": workers}})
    assert rows_at_once(ClassificationObjective(), small_version, settings) == rows
    assert rows_at_once(Limited(), small_version, settings) == min(rows, 7)
