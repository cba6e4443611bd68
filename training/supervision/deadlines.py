"""Decides when the driver stops waiting for an attempt that does not return."""

import logging
import time

from training.attempts.heartbeat import Beat, read_beats
from training.attempts.job import TrainingJob
from training.storage.paths import TRAINED

log = logging.getLogger("evergreen.supervise")

UNWIND_S = 60.0  # time for Ray Train to notice that its workers were killed, or that they finished


class Deadlines:
    """The time limits of one attempt: for its last checkpoint after a stop request, and for its return at the end."""

    def __init__(self, job: TrainingJob):
        self.job = job
        self.asked_at: float | None = None
        self.done_at: float | None = None
        self.moved = 0

    def passed(self, stop_signals: list[int]) -> bool:
        """Whether a requested stop, or the return after the model was finished, has exceeded its time limit.

        `stop_signals` is empty until a stop is requested. The time of a stop begins again whenever workers that train
        have written or transferred bytes since the last call, so that the upload of a large checkpoint to a slow store
        can finish. Bytes before a worker's first step do not count: the worker downloads, and has nothing to save.
        """
        now = time.monotonic()
        if stop_signals and (self._has_moved() or self.asked_at is None):
            self.asked_at = now
        if self.done_at is None and self._is_finished():
            self.done_at = now
        if self.asked_at is not None and now - self.asked_at > self.job.settings.failure.stop_timeout_s:
            log.warning(
                "no last checkpoint, and no byte of it, within failure.stop_timeout_s; training resumes from the "
                "checkpoint before"
            )
            return True
        if self.done_at is not None and now - self.done_at > UNWIND_S:
            log.warning(
                "the model is finished, but Ray Train does not return; the run continues without its answer"
            )
            return True
        return False

    def _has_moved(self) -> bool:
        before, self.moved = self.moved, sum(beat.moved for beat in self._beats() if beat.step)
        return self.moved != before

    def _is_finished(self) -> bool:
        """Whether the finished model is in the run's folder, or in the object store as a heartbeat reports."""
        return (self.job.paths.model / TRAINED).is_file() or any(beat.finished for beat in self._beats())

    def _beats(self) -> list[Beat]:
        return [beat for beat in read_beats(self.job.paths) if beat.attempt == self.job.attempt]
