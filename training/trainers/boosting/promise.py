"""What trainers of boosted trees promise, and their units: a boosting round counts as an epoch and as a step."""

from training.settings.schema import Settings
from training.trainers.base import Promise


def promise(settings: Settings) -> Promise:
    """A killed training resumes at the newest saved block of rounds, whatever the settings of the trees."""
    del settings
    return Promise(resumes="round", same_bits_after_kill=True, any_workers=False)


def steps_per_epoch(settings: Settings, rows: int, world_size: int) -> int:
    """1, because a boosting round counts as an epoch and as a step."""
    del settings, rows, world_size
    return 1


def rows_per_step(settings: Settings, rows: int) -> int:
    """`rows`, because each boosting round uses all rows to learn from."""
    del settings
    return rows
