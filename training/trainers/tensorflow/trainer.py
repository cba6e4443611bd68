"""The trainer `tensorflow`: a Keras model on TensorFlow, data-parallel on several workers.

This module does not import TensorFlow, which is an optional dependency.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from training.errors import SettingError
from training.records import DatasetVersion
from training.settings.schema import Settings
from training.trainers.base import Promise
from training.trainers.network.steps import rows_per_step, steps_per_epoch
from training.trainers.tensorflow.objectives import loss_of

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

DISTRIBUTIONS = ("torch", "tensorflow", "keras")
MODEL_FILE = "weights.safetensors"


def run_worker(job: "TrainingJob", ranks: "Ranks", node: str = "") -> None:
    """See :class:`training.trainers.base.Trainer`. Raises :class:`SettingError` if TensorFlow is not installed."""
    check_dataset(job.settings, job.dataset)
    from training.trainers.tensorflow.worker import run_worker

    run_worker(job, ranks, node)


def check_libraries(settings: Settings) -> None:
    """Raise :class:`SettingError` if TensorFlow is not installed."""
    del settings
    if find_spec("tensorflow") is None:
        raise SettingError(
            "trainer tensorflow: TensorFlow is not installed here; `make setup EXTRAS=tensorflow` installs it into an "
            "environment of its own, .venv-tensorflow, whose command is .venv-tensorflow/bin/evergreen"
        )


def check_dataset(settings: Settings, version: DatasetVersion) -> None:
    """Raise :class:`SettingError` if TensorFlow is not installed, or the rows are no images."""
    check_libraries(settings)
    if not version.has_images:
        raise SettingError(
            f"trainer tensorflow learns from images only, and dataset {version.name} has none; use another trainer, "
            "such as Keras(build_model)"
        )
    loss_of(version)


def promise(settings: Settings) -> Promise:
    """A killed training resumes at the step of its newest checkpoint; several workers may end with other bits."""
    del settings
    return Promise(resumes="step", same_bits_after_kill=False, any_workers=False)
