"""The trainer `lightgbm`: gradient-boosted trees. A boosting round counts as an epoch and as a step.

This module does not import LightGBM, which is an optional dependency.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from training.errors import SettingError
from training.records import DatasetVersion
from training.seams import install_command
from training.settings.schema import Settings
from training.trainers.boosting.promise import promise, rows_per_step, steps_per_epoch
from training.trainers.lightgbm.objectives import objective_of

if TYPE_CHECKING:
    from training.attempts.job import TrainingJob
    from training.trainers.ranks import Ranks

__all__ = [
    "DISTRIBUTIONS",
    "MODEL_FILE",
    "check_dataset",
    "check_libraries",
    "promise",
    "rows_per_step",
    "run_worker",
    "steps_per_epoch",
]

DISTRIBUTIONS = ("lightgbm",)
MODEL_FILE = "model.lgb"


def run_worker(job: "TrainingJob", ranks: "Ranks", node: str = "") -> None:
    """See :class:`training.trainers.base.Trainer`.

    Raises :class:`SettingError` if LightGBM is not installed or can't take the dataset.
    """
    check_dataset(job.settings, job.dataset)
    from training.trainers.lightgbm.worker import run_worker

    run_worker(job, ranks, node)


def check_installed() -> None:
    """Raise :class:`SettingError` if LightGBM is not installed."""
    if find_spec("lightgbm") is None:
        raise SettingError(
            f"trainer lightgbm: LightGBM is not installed; install it by `{install_command('lightgbm')}`"
        )


def check_libraries(settings: Settings) -> None:
    """See :class:`training.trainers.base.Trainer`."""
    del settings
    check_installed()


def check_dataset(settings: Settings, version: DatasetVersion) -> None:
    """Raise :class:`SettingError` if LightGBM is missing, is to use GPUs, or can't learn the problem or images."""
    check_installed()
    if settings.scaling.use_gpu == "yes":
        raise SettingError("scaling.use_gpu: trainer lightgbm computes on CPUs only; use scaling.use_gpu=no")
    objective_of(version)
    if version.table is None or version.has_images or version.text is not None:
        raise SettingError(
            f"trainer lightgbm needs a table, and the dataset {version.name} has none; use a source such as "
            "Table(path, target=...), or the trainer Torch(build_model)"
        )
