"""The trainer `accelerate`: the recipe's training loop with Accelerate, data-parallel (DDP) on several workers.

This module does not import Accelerate, which is an optional dependency.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from training.data.class_balance import check_balance
from training.errors import SettingError
from training.records import DatasetVersion
from training.seams import install_command
from training.settings.schema import Settings
from training.trainers.accelerate.own_settings import own_settings
from training.trainers.base import Promise
from training.trainers.network.steps import rows_per_step, steps_per_epoch

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

DISTRIBUTIONS = ("torch", "accelerate")
MODEL_FILE = "weights.safetensors"


def run_worker(job: "TrainingJob", ranks: "Ranks", node: str = "") -> None:
    """See :class:`training.trainers.base.Trainer`. Raises :class:`SettingError` if Accelerate is not installed."""
    check_dataset(job.settings, job.dataset)
    from training.trainers.accelerate.worker import run_worker

    run_worker(job, ranks, node)


def check_libraries(settings: Settings) -> None:
    """Raise :class:`SettingError` if Accelerate is not installed."""
    del settings
    if find_spec("accelerate") is None:
        raise SettingError(
            f"trainer accelerate: Accelerate is not installed; install it by `{install_command('accelerate')}`"
        )


def check_dataset(settings: Settings, version: DatasetVersion) -> None:
    """Raise :class:`SettingError` if Accelerate is not installed, or classes can't be balanced on each worker."""
    check_libraries(settings)
    training, workers = own_settings(settings), max(1, settings.scaling.num_workers)
    if training.balance_classes and version.classes:
        check_balance(version.classes, training.global_batch_size, workers)


def promise(settings: Settings) -> Promise:
    """A killed training resumes at the step of its newest checkpoint, with one or two workers to the same bits.

    After the first backward pass of each start, DDP changes the order in which it adds the gradients of three or more
    workers.
    """
    return Promise(resumes="step", same_bits_after_kill=settings.scaling.num_workers <= 2, any_workers=False)
