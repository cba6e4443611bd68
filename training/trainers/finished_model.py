"""The model of a finished training: its file and its record, written by one atomic rename."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from training.attempts.job import TrainingJob
from training.data.dataset import open_columns
from training.problems.thresholds import best_threshold, threshold_of
from training.recipe import reload
from training.records import EpochMetrics, Goodput, ReplayOutcome, TrainedModel
from training.storage.files import atomic_folder
from training.storage.paths import TRAINED
from training.storage.record_files import record_text
from training.trainers.base import inspection_of
from training.trainers.rows import training_rows

log = logging.getLogger("evergreen.loop")


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
        trained = trained.model_copy(update={"threshold": _threshold(job, trained, folder / name)})
        (folder / TRAINED).write_text(record_text(TRAINED, trained, job.paths.root.name))


def _threshold(job: TrainingJob, trained: TrainedModel, file: Path) -> float | None:
    """The model's threshold: a number of the settings, or chosen on the validation rows, with the model in `file`."""
    rule = threshold_of(job.settings)
    if rule is None or isinstance(rule, float):
        return rule
    columns = open_columns(job.dataset, "train")
    _, validate = training_rows(columns, job.settings)
    recipe = reload(job.recipe, job.paths.recipe)
    written = trained.model_copy(update={"weights": str(file)})
    predict = inspection_of(job.settings.trainer).predictor(recipe, job.dataset, written)
    counts = job.dataset.label_counts["train"]
    rarer = int(counts[0] < counts[1]) ^ 1  # the second of equally many
    weights = None if columns.weights is None else columns.weights[validate]
    classes, labels = job.dataset.classes, columns.targets[validate]
    threshold = best_threshold(rule, labels, predict(columns.read(validate)), classes, rarer, weights)
    log.info(
        "training.threshold: on %d validation rows, %r is best answered from a probability of %.4g on",
        len(validate),
        classes[1],
        threshold,
    )
    return threshold
