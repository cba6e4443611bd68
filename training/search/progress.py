"""Progress of a trial: its epochs and their scores on the validation rows, read from the run's metric points."""

from collections.abc import Iterable
from dataclasses import dataclass

from training.attempts.metrics import MetricsFile, Point
from training.plan import RunPlan
from training.supervision.launch import finished

LOSS = "validation/loss"


@dataclass(frozen=True)
class Epoch:
    """A trained epoch: its number, which starts at 1, and its loss and metric on the validation rows."""

    number: int
    loss: float
    score: float


@dataclass(frozen=True)
class Progress:
    """Number of trained epochs, and the epoch whose weights are kept so far; None before the end of the first epoch."""

    epochs: int = 0
    best: Epoch | None = None


def epochs_of(points: Iterable[Point], metric: str) -> list[Epoch]:
    """Select the ends of epochs among metric points; `metric` is the name of the problem's metric."""
    ends = [point for point in points if LOSS in point.values]
    return [
        Epoch(int(end.values["epoch"]), end.values[LOSS], end.values[f"validation/{metric}"]) for end in ends
    ]


def best_of(epochs: Iterable[Epoch], keeps_best: bool) -> Progress:
    """Progress after `epochs`.

    With `keeps_best` (`training.select=best`), the weights of the epoch with the lowest loss are kept, else the weights
    of the last epoch.
    """
    known = {epoch.number: epoch for epoch in epochs}
    if not known:
        return Progress()
    last = max(known)
    chosen = min(known.values(), key=lambda epoch: (epoch.loss, epoch.number)) if keeps_best else known[last]
    return Progress(last, chosen)


def progress_of(plan: RunPlan, metric: str) -> Progress:
    """Progress of a trial's run: from the record of a finished training, else from its metric points."""
    trained = finished(plan.paths, plan.run_key)
    if trained is not None:
        kept = trained.selected()
        return Progress(
            trained.history[-1].epoch, Epoch(kept.epoch, kept.validation_loss, kept.validation_score)
        )
    points = MetricsFile(plan.paths.metrics).read()
    return best_of(epochs_of(points, metric), plan.settings.training.keeps_best)
