"""The model of a finished training: its file and its record, written by one atomic rename."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from training.attempts.job import TrainingJob
from training.records import EpochMetrics, Goodput, ReplayOutcome, TrainedModel
from training.storage.files import atomic_folder
from training.storage.paths import TRAINED
from training.storage.record_files import record_text


@dataclass(frozen=True)
class FinishedTraining:
    """What the record of a finished training says, but for the weights.

    `seconds` has the seconds of this attempt by what they were spent on. `stopped` is why the training ended before its
    last epoch, empty if it did not.
    """

    history: Sequence[EpochMetrics]
    selected: EpochMetrics
    steps: int
    world_size: int
    device: str
    seconds: Mapping[str, float]
    replay: ReplayOutcome
    stopped: str = ""


def selected_epoch(history: Sequence[EpochMetrics], best: bool) -> EpochMetrics:
    """The epoch whose weights become the model: the last, or with `best` the first with the lowest validation loss."""
    return min(history, key=lambda row: (row.validation_loss, row.epoch)) if best else history[-1]


def write_model(
    job: TrainingJob,
    training: FinishedTraining,
    name: str,
    write: Callable[[Path], str],
    before_commit: Callable[[], None],
) -> None:
    """Write the model's file `name` and the record of the training into the run's folder of the model.

    `write` writes the file at the given path and returns the digest of the weights. `before_commit` is called just
    before the rename; an error there leaves no model.
    """
    with atomic_folder(job.paths.model, before_commit) as folder:
        digest = write(folder / name)
        total = sum(training.seconds.values())
        trained = TrainedModel(
            run_key=job.run_key,
            weights=str(job.paths.model / name),
            weights_digest=digest,
            selected_epoch=training.selected.epoch,
            steps=training.steps,
            world_size=training.world_size,
            device=training.device,
            history=tuple(training.history),
            seconds=total,
            goodput=Goodput(total_s=total, parts=dict(training.seconds)),
            reproducible=training.replay.reproducible,
            reproducible_reason=training.replay.reason,
            stopped=training.stopped,
        )
        (folder / TRAINED).write_text(record_text(TRAINED, trained, job.paths.root.name))
