"""A worker's entry into an attempt: its fence, its first heartbeat, and the record that its training starts."""

import time
from dataclasses import dataclass
from typing import Self

from training.attempts.fence import Fence
from training.attempts.heartbeat import Heartbeat, furthest_step
from training.attempts.history import Attempt, note
from training.attempts.job import TrainingJob
from training.trainers.ranks import Ranks


@dataclass(frozen=True)
class Entry:
    """The entry of one worker, at `began` (seconds since 1970); `reached` is the furthest step of earlier attempts."""

    job: TrainingJob
    ranks: Ranks
    began: float
    reached: int
    fence: Fence
    heartbeat: Heartbeat

    @classmethod
    def of_worker(cls, job: TrainingJob, ranks: Ranks, node: str) -> Self:
        """Enter the attempt of `job` on `node`, with a first heartbeat.

        Raises :class:`training.attempts.fence.SupersededError` on the first rank if a newer attempt has begun.
        """
        began = time.time()
        # Read before the first heartbeat of this attempt, which overwrites those of older attempts.
        reached = furthest_step(job.paths)
        fence = Fence(job.paths.fence, job.attempt, driver=job.driver)
        if ranks.is_first:
            fence = Fence.enter(job.paths, job.attempt, job.driver)
        heartbeat = Heartbeat(job.paths.beats / f"rank-{ranks.rank}.json", job.attempt, ranks.rank, node)
        heartbeat.beat(0)
        return cls(job, ranks, began, reached, fence, heartbeat)

    def note_ready(self, first_step: int, device: str = "") -> None:
        """Record, on the first rank, that training starts now at `first_step`.

        `device` is the type of the device that computes, if it is not the device of the rank's tensors.
        """
        if not self.ranks.is_first:
            return
        attempt = Attempt(
            number=self.fence.number,
            group=self.fence.group,
            began=self.began,
            ready=time.time(),
            world_size=self.ranks.world_size,
            device=device or self.ranks.device.type,
            first_step=first_step,
            reached=max(self.reached, first_step),
        )
        note(self.job.paths.attempts, attempt)
