"""Steps of the trainers of networks whose steps take `training.global_batch_size` rows over all workers."""

from training.settings.schema import Settings
from training.trainers.network.own_settings import network_settings
from training.trainers.rows import order_of


def steps_per_epoch(settings: Settings, rows: int, world_size: int) -> int:
    """Optimizer steps of one epoch with `rows` rows to learn from."""
    del world_size
    return order_of(settings, rows, network_settings(settings).global_batch_size).steps_per_epoch


def rows_per_step(settings: Settings, rows: int) -> int:
    """Rows of one optimizer step, over all workers."""
    del rows
    return network_settings(settings).global_batch_size
