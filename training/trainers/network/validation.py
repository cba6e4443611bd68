"""Loss and metric of a network over rows, without learning from these rows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch  # noqa: TID253 - imported by processes that train
import torch.distributed as dist  # noqa: TID253
from torch import nn  # noqa: TID253

from training.data.dataset import Columns
from training.data.sample_order import Rows
from training.problems.objectives import Objective, objective_named, sums_of
from training.recipe_metrics import RecipeMetrics
from training.records import DatasetVersion
from training.settings.schema import Settings
from training.trainers.network.feeds import weights_of
from training.trainers.ranks import Ranks

_MOST_ROWS = 512
_TRAINING_PASSES = (
    4  # a training's pass needs more memory per row: activations are kept for its backward pass
)


def rows_at_once(objective: Objective, version: DatasetVersion, settings: Settings) -> int:
    """Rows of a validation's forward pass: 512, or fewer if the objective's `most_rows` or the training says so.

    `most_rows(version)` is a method of objectives whose outputs need much memory. A pass has at most 4 times the rows
    of a worker's pass of the training: more might not fit into memory, and take so long that the watchdog ends the
    worker. With virtual shards, the number does not depend on the number of workers.
    """
    most_rows: Callable[[DatasetVersion], int] | None = getattr(objective, "most_rows", None)
    most = _MOST_ROWS if most_rows is None else most_rows(version)
    options = settings.training
    parts = options.fixed_parts or max(1, settings.scaling.num_workers)
    if options.rows_of_step is not None:
        most = min(most, _TRAINING_PASSES * options.rows_of_step // (parts * options.passes_of_step))
    return max(1, most)


def sums_over(
    forward: Callable[[torch.Tensor], torch.Tensor],
    objective: Objective,
    version: DatasetVersion,
    device: torch.device,
    columns: Columns,
    rows: Rows,
    batch_rows: int,
    progress: Callable[[], None],
    metrics: RecipeMetrics,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums (float64) of losses and of the metric over `rows`; adds the rows to `metrics`.

    A batch has `batch_rows` rows. Calls `progress` after each batch. `forward` maps inputs
    (:class:`training.data.columns.Columns`), on `device`, to the network's output.
    """
    losses, scores = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for start in range(0, len(rows), batch_rows):
        part = rows[start : start + batch_rows]
        targets = torch.from_numpy(columns.targets[part]).to(device)
        inputs = torch.from_numpy(columns.read(part)).to(device)
        outputs = forward(inputs)
        metrics.add_outputs(outputs, targets)
        weights = weights_of(columns.weights, part)
        weights = None if weights is None else weights.to(device)
        loss, score = sums_of(objective, outputs, targets, version, weights=weights)
        losses += loss.double().cpu()
        scores += score.double().cpu()
        progress()
    return losses, scores


def mean_over(
    module: nn.Module,
    forward: Callable[[torch.Tensor], torch.Tensor],
    version: DatasetVersion,
    ranks: Ranks,
    columns: Columns,
    rows: Rows,
    batch_rows: int,
    progress: Callable[[], None],
    metrics: RecipeMetrics,
) -> tuple[float, float]:
    """Mean loss and metric over `rows`, computed by all ranks together; other arguments as in :func:`sums_over`.

    First, all ranks get the buffers of the first rank's `module` (running statistics), which the checkpoint holds.
    """
    if ranks.distributed:
        for buffer in module.buffers():
            dist.broadcast(buffer, src=0)
    objective = objective_named(version.problem)
    mine = rows[ranks.rank :: ranks.world_size]
    sums = sums_over(forward, objective, version, ranks.device, columns, mine, batch_rows, progress, metrics)
    loss, score, count = ranks.add_up(*sums, len(mine))
    return loss / count, objective.reduced(score, count)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put `module` into evaluation mode, without gradients; after the block, each submodule has its earlier mode."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part in training:
            part.training = True
