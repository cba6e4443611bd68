"""The trainer `keras`: a Keras model on Keras' torch backend, data-parallel (DDP) on several workers.

This module does not import Keras, which is an optional dependency.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from training.errors import SettingError
from training.records import DatasetVersion
from training.seams import install_command
from training.settings.schema import Settings
from training.trainers.base import Promise
from training.trainers.network.dataset_checks import check_smoothing
from training.trainers.network.steps import rows_per_step, steps_per_epoch
from training.trainers.own_loop.own_settings import loop_settings

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

DISTRIBUTIONS = ("torch", "keras")
MODEL_FILE = "weights.safetensors"


def run_worker(job: "TrainingJob", ranks: "Ranks", node: str = "") -> None:
    """See :class:`training.trainers.base.Trainer`. Raises :class:`SettingError` if Keras is not installed."""
    check_dataset(job.settings, job.dataset)
    from training.trainers.keras.worker import run_worker

    run_worker(job, ranks, node)


def check_libraries(settings: Settings) -> None:
    """Raise :class:`SettingError` if Keras is not installed."""
    del settings
    if find_spec("keras") is None:
        raise SettingError(
            f"trainer keras: Keras is not installed; install it by `{install_command('keras')}`"
        )


def check_dataset(settings: Settings, version: DatasetVersion) -> None:
    """Raise :class:`SettingError` if Keras is not installed, or for label smoothing without classes."""
    check_libraries(settings)
    check_smoothing("training.label_smoothing", loop_settings(settings).label_smoothing, version)


def promise(settings: Settings) -> Promise:
    """A killed training resumes at the step of its newest checkpoint, and ends with the same bits."""
    del settings
    return Promise(resumes="step", same_bits_after_kill=True, any_workers=False)
