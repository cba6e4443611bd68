"""Requests to save a checkpoint or to stop, which the first worker of a training reads between two steps."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from training.attempts.fence import Fence
from training.storage.paths import RunPaths

SAVE, STOP = 1, 2  # the larger takes precedence
_LOOK_S = 0.2  # seconds between two checks


@dataclass
class Requests:
    """Requests for one worker; only the first worker reads them, and informs the others.

    A save is due `every_s` seconds after the last save, and when the run's file `save` exists. `is_writing` says
    whether a checkpoint is being written: a request to save then waits. With `can_save` False, no save is requested.
    """

    paths: RunPaths
    every_s: float
    is_first: bool
    fence: Fence
    is_writing: Callable[[], bool]
    can_save: bool = True
    saved_at: float = field(default_factory=time.perf_counter)
    looked_at: float = 0.0

    def read(self) -> int:
        """0, :data:`SAVE` or :data:`STOP`; checks only every 0.2 s. Each save is requested once.

        Raises :class:`training.attempts.fence.SupersededError` if this attempt may not write any more.
        """
        now = time.perf_counter()
        if not self.is_first or now - self.looked_at < _LOOK_S:
            return 0
        self.looked_at = now
        if self.paths.stop.exists():
            return STOP
        self.fence.check()
        if not self.can_save or self.is_writing() or not self._is_due(now):
            return 0
        self.paths.save.unlink(missing_ok=True)
        self.saved_at = now
        return SAVE

    def saved(self) -> None:
        """Note that a checkpoint was saved."""
        self.saved_at = time.perf_counter()

    def _is_due(self, now: float) -> bool:
        return now - self.saved_at >= self.every_s or self.paths.save.exists()
