"""The trainer `transformers`: the Trainer of Hugging Face's Transformers, data-parallel (DDP) on several workers.

This module does not import Transformers, which is an optional dependency.
"""

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from training.errors import SettingError
from training.records import DatasetVersion
from training.seams import install_command
from training.settings.schema import Settings
from training.trainers.base import Promise
from training.trainers.network.dataset_checks import check_smoothing
from training.trainers.network.steps import rows_per_step, steps_per_epoch
from training.trainers.transformers.own_settings import own_settings

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

DISTRIBUTIONS = ("torch", "transformers", "accelerate")
MODEL_FILE = "weights.safetensors"


def run_worker(job: "TrainingJob", ranks: "Ranks", node: str = "") -> None:
    """See :class:`training.trainers.base.Trainer`. Raises :class:`SettingError` if Transformers is not installed."""
    check_dataset(job.settings, job.dataset)
    # Transformers imports Comet's library if it is installed, which then would report errors and log trainings.
    os.environ["COMET_DISABLE_AUTO_LOGGING"] = "1"
    os.environ.setdefault("COMET_ERROR_TRACKING_ENABLE", "false")
    from training.trainers.transformers.worker import run_worker

    run_worker(job, ranks, node)


def check_libraries(settings: Settings) -> None:
    """Raise :class:`SettingError` if Transformers is not installed."""
    del settings
    if find_spec("transformers") is None or find_spec("accelerate") is None:
        raise SettingError(
            "trainer transformers: Transformers and Accelerate are not both installed; install them by "
            f"`{install_command('transformers')}`"
        )


def check_dataset(settings: Settings, version: DatasetVersion) -> None:
    """Raise :class:`SettingError` if Transformers is not installed, or for label smoothing without classes."""
    check_libraries(settings)
    smoothing = own_settings(settings).label_smoothing_factor
    check_smoothing("training.label_smoothing_factor", smoothing, version)


def promise(settings: Settings) -> Promise:
    """A killed training resumes at the step of its newest checkpoint, and ends with the same bits."""
    del settings
    return Promise(resumes="step", same_bits_after_kill=True, any_workers=False)
