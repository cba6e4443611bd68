"""The trainer `torch`: Evergreen's own loop over a PyTorch module, data-parallel (DDP) on several workers."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from training.errors import SettingError
from training.records import DatasetVersion
from training.seams import install_command
from training.settings.schema import Settings
from training.trainers.base import Promise
from training.trainers.network.dataset_checks import check_channels_last, check_smoothing
from training.trainers.network.feeds import local_batch_size
from training.trainers.rows import order_of
from training.trainers.torch.own_settings import own_settings

if TYPE_CHECKING:
    from training.attempts.job import TrainingJob
    from training.trainers.ranks import Ranks

DISTRIBUTIONS = ("torch",)
MODEL_FILE = "weights.safetensors"


def run_worker(job: "TrainingJob", ranks: "Ranks", node: str = "") -> None:
    """See :class:`training.trainers.base.Trainer`. Raises :class:`SettingError` if a library is not installed."""
    check_dataset(job.settings, job.dataset)
    from training.trainers.torch.worker import run_worker

    run_worker(job, ranks, node)


def check_libraries(settings: Settings) -> None:
    """Raise :class:`SettingError` if the library of the strategy is not installed."""
    for name in own_settings(settings).libraries:
        if find_spec(name) is None:
            raise SettingError(
                f"training.strategy: {name} is not installed; install it by `{install_command(name)}`"
            )


def check_dataset(settings: Settings, version: DatasetVersion) -> None:
    """Raise :class:`SettingError` if a library is missing, or for settings that the dataset's rows or problem lack."""
    options = own_settings(settings)
    check_libraries(settings)
    if not version.has_images and settings.data.feed == "stream":
        raise SettingError("data.feed: stream reads images; rows of a table need data.feed=memory")
    check_channels_last(options.channels_last, version)
    check_smoothing("training.label_smoothing", options.label_smoothing, version)


def promise(settings: Settings) -> Promise:
    """The feeds `memory` and `loader` resume at any step, the feed `stream` at whole epochs."""
    exact = settings.data.feed != "stream"
    return Promise(
        resumes="step" if exact else "epoch",
        same_bits_after_kill=exact,
        any_workers=own_settings(settings).virtual_shards is not None,
    )


def steps_per_epoch(settings: Settings, rows: int, world_size: int) -> int:
    """Optimizer steps of one epoch with `rows` rows to learn from, for the feed `data.feed`.

    0 when a feed that uses only whole batches has too few rows for one batch, which training refuses.
    """
    if settings.data.feed == "stream":  # each worker uses the whole batches of its share
        return rows // world_size // local_batch_size(settings)
    return order_of(settings, rows, own_settings(settings).global_batch_size).steps_per_epoch


def rows_per_step(settings: Settings, rows: int) -> int:
    """Rows of one optimizer step, over all workers."""
    del rows
    return own_settings(settings).global_batch_size
