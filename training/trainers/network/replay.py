"""The common part of the replay checks of networks: which steps are replayed, when, and how the outcome is recorded.

The training records checksums of the steps after the first checkpoint of an attempt. A new model then loads that
checkpoint as a resumed attempt would, and runs the same steps. All ranks take part, as steps are collective. If an
attempt dies during the replay, the next attempt resumes as always and replays again; if that attempt dies in the
replay too, the run continues without the check.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch  # noqa: TID253 - imported by processes that train

from training.attempts.fence import Fence
from training.attempts.heartbeat import Heartbeat
from training.attempts.job import TrainingJob
from training.checkpoints.checkpoint_log import CheckpointLog, Position
from training.checkpoints.parts import StoredRows
from training.errors import EvergreenError
from training.records import ReplayOutcome
from training.storage.record_files import write_record
from training.trainers.accounting import Clock
from training.trainers.long_work import LongWork
from training.trainers.ranks import Ranks
from training.trainers.replay_outcome import begun, is_decided, read_outcome, unchecked

log = logging.getLogger("evergreen.replay")

_MOST_STEPS = 5
_SECONDS = 0.3  # time limit for the replayed steps, which sets their number; at least one step is replayed


@dataclass
class NetworkReplay:
    """See :class:`training.trainers.network.replay_check.ReplayCheck`.

    `left_out` says why the run is not checked; empty: the run is checked.
    """

    job: TrainingJob
    ranks: Ranks
    long_work: LongWork
    checkpoints: CheckpointLog
    fence: Fence
    heartbeat: Heartbeat
    clock: Clock
    total_steps: int
    steps_per_epoch: int
    left_out: str = ""
    _wanted: bool = False
    _entered_at: tuple[int, float] = (0, 0.0)  # step and time
    _start: Position | None = None
    _count: int = 0

    def __post_init__(self) -> None:
        if not self.job.settings.checkpoint.replay:
            self.left_out = "checkpoint.replay is off"

    def enter(self, step: int) -> None:
        """Called when training starts at `step`: all ranks agree on whether to check the run."""
        wanted = self.ranks.is_first and not self.left_out and not is_decided(read_outcome(self.job.paths))
        self._wanted = bool(self.ranks.add_up(float(wanted))[0])
        self._entered_at = step, time.perf_counter()

    def needs_checkpoint(self, step: int) -> bool:
        """Whether to save a checkpoint after `step`, halfway through a training of at most one epoch.

        Otherwise such a training may have no checkpoint before its end, so no steps to replay.
        """
        return (
            self._wanted and self.total_steps <= self.steps_per_epoch and step == (self.total_steps + 1) // 2
        )

    def saved(self, position: Position) -> None:
        """Called on all ranks when a checkpoint at `position` is being saved: start to record the next steps."""
        steps = min(
            self.steps_per_epoch - position.step_in_epoch, self.total_steps - position.step, _MOST_STEPS
        )
        if not self._wanted or self._start is not None or steps < 1:
            return
        entered, since = self._entered_at
        mean_s = (time.perf_counter() - since) / max(1, position.step - entered)
        slowest_s = max(map(float, self.ranks.gather(torch.tensor([mean_s], device=self.ranks.device))))
        self._start, self._count = position, max(1, min(steps, int(_SECONDS / slowest_s)))
        self.checkpoints.pinned = position.step

    def outcome(self) -> ReplayOutcome:
        """The outcome of the run's replay check, or why there was no replay."""
        reason = self.left_out or "no step followed a checkpoint within one attempt"
        return read_outcome(self.job.paths) or unchecked(reason)

    def check(self, start: Position, replayed: Callable[[dict[str, Any]], ReplayOutcome]) -> None:
        """Record what `replayed` finds, given the state of the checkpoint at `start`; an error is recorded, too."""
        self.long_work.on_all(self.checkpoints.wait)
        if self.ranks.is_first:
            self._write(begun(read_outcome(self.job.paths)))
        self.ranks.barrier()
        failed = False
        try:
            outcome = self._from_checkpoint(start, replayed)
        except Exception as error:
            failed, outcome = True, unchecked(f"the replay failed ({type(error).__name__}: {error})")
            # Written before the collective call below: if only this rank fails, the others wait in a step for it,
            # until they time out.
            self._write(outcome)
        if self.ranks.add_up(float(failed))[0] and not failed:
            outcome = unchecked("the replay failed on another worker")
        if self.ranks.device.type == "cuda":
            torch.cuda.empty_cache()
        if self.ranks.is_first:
            self._write(outcome)
            log.log(logging.INFO if outcome.reproducible else logging.WARNING, "%s", outcome.reason)
        self.checkpoints.pinned = self._start = None
        self._wanted = False

    def _write(self, outcome: ReplayOutcome) -> None:
        if self.ranks.is_first:  # the only rank whose fence knows the group of workers
            self.fence.check()
        else:
            self.fence.check_attempt()
        write_record(self.job.paths.replay, outcome, self.job.paths.root.name)

    def _from_checkpoint(
        self, start: Position, replayed: Callable[[dict[str, Any]], ReplayOutcome]
    ) -> ReplayOutcome:
        state = self._read(start)
        if state is None:
            return unchecked(f"the checkpoint at step {start.step} could not be read back")
        if self._memory_lacks(state):
            return unchecked("there is no memory for a second model beside the first")
        return replayed(state)

    def _read(self, start: Position) -> dict[str, Any] | None:
        """State of the checkpoint, or None on all ranks if any rank can't read it."""
        state = None
        try:
            state = self.long_work.on_all(lambda: self.checkpoints.load_at(start.step))
        except (EvergreenError, OSError) as error:  # all ranks skip the check, also in a store's outage
            log.warning("%s The replay check of this run is skipped.", error)
        return None if self.ranks.add_up(float(state is None))[0] else state

    def _memory_lacks(self, state: dict[str, Any]) -> bool:
        """Whether any rank lacks the memory for a second model beside the first."""
        import psutil

        # Twice the state: for gradients, and for a copy while the state is loaded.
        needed = 2 * sum(_sizes(state, self.ranks.world_size))
        if self.ranks.device.type == "cuda":
            device = self.ranks.device
            allocated = torch.cuda.memory_allocated(device)
            needed += torch.cuda.max_memory_allocated(device) - allocated  # temporary memory of a step
            free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - allocated
        else:
            free = psutil.virtual_memory().available // self.ranks.world_size
        return bool(self.ranks.add_up(float(needed > free))[0])


def _sizes(value: Any, world_size: int) -> Iterator[int]:
    """Bytes of each tensor inside nested containers; of a tensor in parts, the share of one rank."""
    if isinstance(value, torch.Tensor):
        yield value.nbytes
    elif isinstance(value, StoredRows):
        yield value.nbytes // world_size
    elif isinstance(value, dict | list | tuple):
        parts: Iterable[Any] = value.values() if isinstance(value, dict) else value
        for part in parts:
            yield from _sizes(part, world_size)
