"""The interface of a trainer: how a model's weights come about on a group of worker processes.

`Settings.trainer` names the trainer of a run; :func:`trainer_named` imports the trainer's module, so that a process
imports only the libraries of this trainer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from training.records import DatasetVersion, TrainedModel
from training.seams import TrainerName, trainer_part

if TYPE_CHECKING:
    from training.attempts.job import TrainingJob
    from training.problems.base import Predict
    from training.recipe import Recipe
    from training.settings.schema import Settings  # which imports the settings of all trainers
    from training.trainers.ranks import Ranks


@dataclass(frozen=True)
class Promise:
    """What a trainer promises under given settings, as data that `plan`, documentation and tests read.

    `resumes`: the unit of progress at which a killed training continues; `round` is the newest round of boosted trees
    that has a checkpoint; only each tenth round and the last can have one. `same_bits_after_kill`: whether a training
    that was killed and resumed ends with the same bits as a training that was not. `any_workers`: whether every number
    of workers gives the same bits.
    """

    resumes: Literal["step", "epoch", "round"]
    same_bits_after_kill: bool
    any_workers: bool


class Trainer(Protocol):
    """The module of a trainer, `training/trainers/<name>/trainer.py`, has these names.

    A trainer may also be a single file, `training/trainers/<name>.py`, with these names, those of :class:`Inspection`
    and the settings section.

    `DISTRIBUTIONS` names the libraries whose versions count for the run key, besides those that always count.
    `MODEL_FILE` is the name of the finished model's file in `job.paths.model`.
    """

    DISTRIBUTIONS: tuple[str, ...]
    MODEL_FILE: str

    def run_worker(self, job: "TrainingJob", ranks: "Ranks", node: str = "") -> None:
        """Train to the end, as one worker; the first rank writes the finished model to `job.paths.model`.

        The first rank writes the metric points that :mod:`training.attempts.metrics` lists, at the intervals of
        :func:`training.trainers.accounting.metric_interval` and at the ends of epochs.

        Raises :class:`training.errors.TrainingError` if the training can't succeed.
        """

    def check_libraries(self, settings: "Settings") -> None:
        """Raise :class:`training.errors.SettingError`, with the command that helps, if a library is not installed."""

    def check_dataset(self, settings: "Settings", version: DatasetVersion) -> None:
        """Raise :class:`training.errors.SettingError` if this trainer can't learn from a dataset version.

        Raises as :meth:`check_libraries`, too. The statistics of `version` may be missing: `plan` checks before the
        rows are prepared.
        """

    def promise(self, settings: "Settings") -> Promise:
        """What this trainer promises under these settings."""

    def steps_per_epoch(self, settings: "Settings", rows: int, world_size: int) -> int:
        """Steps of one epoch with `rows` rows to learn from."""

    def rows_per_step(self, settings: "Settings", rows: int) -> int:
        """Rows of one step over all workers, of `rows` rows to learn from."""


class Inspection(Protocol):
    """The module `training/trainers/<name>/inspection.py` has these functions. It is not in the run key.

    A trainer that is a single file has these functions there.
    """

    def predictor(self, recipe: "Recipe", version: DatasetVersion, trained: TrainedModel) -> "Predict":
        """A function from inputs (:class:`training.data.columns.Columns`) to predictions, from a training's files.

        Raises :class:`training.errors.DataError` if the files are not what the training wrote.
        """

    def model_digest(self, state: Mapping[str, Any], epoch: int) -> str:
        """Digest of the model of an epoch in the state of a checkpoint, as the finished training records it."""

    def importances(self, model: Path) -> dict[str, float]:
        """Share of each column in what all splits of a tree model gained; empty for models without splits."""


def trainer_module(name: TrainerName) -> str:
    """Name of the module of a trainer."""
    return trainer_part(name, "trainer")


def check_dataset(settings: "Settings", version: DatasetVersion) -> None:
    """Raise :class:`training.errors.SettingError` if the trainer of these settings can't learn from a dataset version.

    See :meth:`Trainer.check_dataset`. Also refuses weights of rows that the trainer would ignore, and a
    threshold of other than two classes.
    """
    from training.problems.thresholds import check_threshold
    from training.trainers.row_weights import check_weights

    trainer_named(settings.trainer).check_dataset(settings, version)
    check_weights(settings, version)
    check_threshold(settings, version)


def trainer_named(name: TrainerName) -> Trainer:
    """The module of a trainer; `name` is that of a section of settings."""
    return cast(Trainer, import_module(trainer_module(name)))


def inspection_of(name: TrainerName) -> Inspection:
    """What reads the files that a trainer wrote."""
    return cast(Inspection, import_module(trainer_part(name, "inspection")))
