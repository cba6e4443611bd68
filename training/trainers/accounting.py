"""Accounts of a training, whatever its trainer: seconds per part, and the steps between metric points."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from training.settings.schema import Settings

_POINTS_PER_EPOCH, _MOST_STEPS_A_POINT = 10, 50


@dataclass
class Clock:
    """Accumulates the seconds that each part of the loop takes, by the part's name."""

    parts: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add the block's exclusive time in seconds to `part`: time added to parts inside the block is subtracted."""
        booked, began = sum(self.parts.values()), time.perf_counter()
        try:
            yield
        finally:
            elsewhere = sum(self.parts.values()) - booked
            self.parts[part] = self.parts.get(part, 0.0) + time.perf_counter() - began - elsewhere


def metric_interval(settings: Settings, steps_per_epoch: int) -> int:
    """Steps between metric points: `tracking.log_every_steps`, by default a tenth of an epoch, from 1 to 50."""
    return settings.tracking.log_every_steps or max(
        1, min(_MOST_STEPS_A_POINT, steps_per_epoch // _POINTS_PER_EPOCH)
    )
