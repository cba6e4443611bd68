"""The trainer `xgboost`: gradient-boosted trees. A boosting round counts as an epoch and as a step.

This module does not import XGBoost, which is an optional dependency.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from training.errors import SettingError
from training.records import DatasetVersion
from training.seams import install_command
from training.settings.schema import Settings
from training.trainers.boosting.promise import promise, rows_per_step, steps_per_epoch
from training.trainers.xgboost.objectives import objective_of

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

DISTRIBUTIONS = ("xgboost",)
MODEL_FILE = "model.ubj"
_NOT_IN_NAMES = "[]<"


def run_worker(job: "TrainingJob", ranks: "Ranks", node: str = "") -> None:
    """See :class:`training.trainers.base.Trainer`.

    Raises :class:`SettingError` if XGBoost is not installed or can't take the dataset.
    """
    check_dataset(job.settings, job.dataset)
    from training.trainers.xgboost.worker import run_worker

    run_worker(job, ranks, node)


def check_installed() -> None:
    """Raise :class:`SettingError` if XGBoost is not installed."""
    if find_spec("xgboost") is None:
        raise SettingError(
            f"trainer xgboost: XGBoost is not installed; install it by `{install_command('xgboost')}`"
        )


def check_libraries(settings: Settings) -> None:
    """See :class:`training.trainers.base.Trainer`."""
    del settings
    check_installed()


def check_dataset(settings: Settings, version: DatasetVersion) -> None:
    """Raise :class:`SettingError` if XGBoost is not installed, or can't learn the dataset.

    XGBoost supports only some problems, no images, and no columns with `[`, `]` or `<` in their names. Raises the same
    for `scaling.use_gpu=yes` if XGBoost was built without CUDA, as the package `xgboost-cpu` is.
    """
    check_installed()
    if settings.scaling.use_gpu == "yes" and not settings.training.can_use_gpus:
        raise SettingError(
            "scaling.use_gpu: this XGBoost was built without CUDA, as the package xgboost-cpu is; install the package "
            "xgboost instead, or use scaling.use_gpu=no"
        )
    objective_of(version)
    if version.table is None or version.has_images or version.text is not None:
        raise SettingError(
            f"trainer xgboost needs a table, and the dataset {version.name} has none; use a source such as "
            "Table(path, target=...), or the trainer Torch(build_model)"
        )
    for column in version.table.columns:
        if set(column.name) & set(_NOT_IN_NAMES):
            raise SettingError(
                f"column {column.name!r}: trainer xgboost allows no [, ] and < in the name of a column; rename the "
                "column, or leave it out by Table(..., drop=...)"
            )
