"""Replay check: would an interrupted run end with the same bits? Checked once per run, by replaying a few steps.

The training records checksums of the steps after the first checkpoint of an attempt. Then the recipe is imported
again, and a new model loads that checkpoint as a resumed attempt would and runs the same steps. Its state is compared
bit by bit with the state of the training. The training's own model, optimizer, random generators and feed do not
change.

All ranks take part, as steps are collective. If an attempt dies during the replay, the next attempt resumes as always
and replays again; if that attempt dies in the replay too, the run continues without the check.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch  # noqa: TID253 - imported by processes that train

from training.attempts.fence import Fence
from training.attempts.heartbeat import Heartbeat
from training.attempts.job import TrainingJob
from training.checkpoints.checkpoint_log import CheckpointLog, Position
from training.checkpoints.parts import OwnRows, StoredRows
from training.errors import EvergreenError
from training.recipe import modules_set_aside
from training.records import ReplayOutcome
from training.storage.record_files import write_record
from training.trainers.accounting import Clock
from training.trainers.generators import generators_kept
from training.trainers.long_work import LongWork
from training.trainers.network.feeds import Batch, Feed
from training.trainers.own_loop.replica import LoopReplica
from training.trainers.own_loop.unsaved_state import differing_globals, globals_of, unsaved_differences
from training.trainers.ranks import Ranks
from training.trainers.replay_outcome import (
    begun,
    different,
    equal,
    is_decided,
    read_outcome,
    unchecked,
)

log = logging.getLogger("evergreen.replay")

_MOST_STEPS = 5
_SECONDS = 0.3  # time limit for the replayed steps, which sets their number; at least one step is replayed
Sums = tuple[tuple[str, ...], torch.Tensor]  # names of tensors, and a checksum for each
Rebuild = Callable[[], tuple[Feed | None, LoopReplica]]


@dataclass(frozen=True)
class _Watched:
    """Record of one training step: a checksum of each tensor, and the batch if the feed can't provide it again."""

    sums: Sums
    batch: Batch | None


@dataclass
class Replay:
    """The replay check of one attempt.

    `rebuild` imports the recipe again and builds a new replica and a new feed. The feed is None for a stream of rows,
    which can't be read twice.
    """

    job: TrainingJob
    ranks: Ranks
    long_work: LongWork
    replica: LoopReplica
    rebuild: Rebuild
    checkpoints: CheckpointLog
    fence: Fence
    heartbeat: Heartbeat
    clock: Clock
    total_steps: int
    steps_per_epoch: int
    _wanted: bool = False
    _entered_at: tuple[int, float] = (0, 0.0)  # step and time
    _start: Position | None = None
    _count: int = 0
    _watched: list[_Watched] = field(default_factory=list)

    def enter(self, step: int) -> None:
        """Called when training starts at `step`: all ranks agree on whether to check the run."""
        wanted = self.ranks.is_first and not self._left_out and not is_decided(read_outcome(self.job.paths))
        self._wanted = bool(self.ranks.add_up(float(wanted))[0])
        self._entered_at = step, time.perf_counter()

    @property
    def _left_out(self) -> str:
        """Why the settings exclude this run from the check; empty if they do not."""
        if not self.job.settings.checkpoint.replay:
            return "checkpoint.replay is off"
        return self.replica.no_second_model

    @property
    def watching(self) -> bool:
        """Whether the caller must call :meth:`watch` after the next step."""
        return self._start is not None

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
        if not self._wanted or self.watching or steps < 1:
            return
        entered, since = self._entered_at
        mean_s = (time.perf_counter() - since) / max(1, position.step - entered)
        slowest_s = max(map(float, self.ranks.gather(torch.tensor([mean_s], device=self.ranks.device))))
        self._start, self._count = position, max(1, min(steps, int(_SECONDS / slowest_s)))
        self.checkpoints.pinned = position.step

    def watch(self, batch: Batch, losses: torch.Tensor, scores: torch.Tensor) -> float:
        """Record the step that the training has just done; after the last recorded step, replay all and compare.

        Returns the seconds that this call took, which the caller leaves out of speeds.
        """
        assert self._start is not None
        began = time.perf_counter()
        with self.clock.time("replay check"):
            kept = batch if self.job.feed == "stream" else None
            last = len(self._watched) + 1 == self._count
            self._watched.append(_Watched(_checksums(self.replica, batch, losses, scores, last), kept))
            if last:
                with self.heartbeat.kept_beating(self._start.step + self._count):
                    self._check(self._start)
                self.checkpoints.pinned = self._start = None
                self._wanted, self._watched = False, []
        return time.perf_counter() - began

    def outcome(self) -> ReplayOutcome:
        """The outcome of the run's replay check, or why there was no replay."""
        reason = self._left_out or "no step followed a checkpoint within one attempt"
        return read_outcome(self.job.paths) or unchecked(reason)

    def _check(self, start: Position) -> None:
        self.long_work.on_all(self.checkpoints.wait)
        if self.ranks.is_first:
            self._write(begun(read_outcome(self.job.paths)))
        self.ranks.barrier()
        failed = False
        try:
            outcome = self._replayed(start)
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

    def _write(self, outcome: ReplayOutcome) -> None:
        if self.ranks.is_first:  # the only rank whose fence knows the group of workers
            self.fence.check()
        write_record(self.job.paths.replay, outcome, self.job.paths.root.name)

    def _replayed(self, start: Position) -> ReplayOutcome:
        state = self._read(start)
        if state is None:
            return unchecked(f"the checkpoint at step {start.step} could not be read back")
        if self._memory_lacks(state):
            return unchecked("there is no memory for a second model beside the first")
        of_training = globals_of(self.job.paths.recipe)
        with generators_kept(), modules_set_aside(self.job.paths.recipe):
            feed, replica = self.rebuild()
            replica.load(state["learner"])
            first, differing = self._first_difference(start, feed, replica)
            unsaved = unsaved_differences(self.replica.module, replica.module)
            unsaved += differing_globals(of_training, globals_of(self.job.paths.recipe))
        ranks_with_any = self.ranks.add_up(float(bool(differing or unsaved)))[0]
        if not ranks_with_any:
            return equal(start.step, self._count)
        return different(start.step, self._count, first, differing, unsaved)

    def _read(self, start: Position) -> dict[str, Any] | None:
        """State of the checkpoint, or None on all ranks if any rank can't read it."""
        state = None
        try:
            state = self.long_work.on_all(lambda: self.checkpoints.load_at(start.step))
        except (EvergreenError, OSError) as error:  # all ranks skip the check, also when a store is away
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

    def _first_difference(
        self, start: Position, feed: Feed | None, replica: LoopReplica
    ) -> tuple[int | None, list[str]]:
        """The first step after which anything differs, and the names of what differs; every rank runs all steps."""
        found: tuple[int | None, list[str]] = None, []
        for number, batch in enumerate(self._batches(start, feed)):
            losses, scores = replica.step(batch, start.epoch, start.step + number)
            last = number + 1 == self._count
            names = _differing_bits(self.replica, replica) if last else []
            names += _differing(self._watched[number].sums, _checksums(replica, batch, losses, scores, last))
            if names and found[0] is None:
                found = start.step + number + 1, names
        return found

    def _batches(self, start: Position, feed: Feed | None) -> Iterator[Batch]:
        if feed is None:
            return (step.batch for step in self._watched if step.batch is not None)
        return islice(feed.batches(start.epoch, start.step_in_epoch), self._count)


def _checksums(
    replica: LoopReplica, batch: Batch, losses: torch.Tensor, scores: torch.Tensor, last: bool
) -> Sums:
    """A checksum of each tensor that a step uses or changes, computed on the device without waiting for it.

    After the last step, the state is left out: both models still hold it, so it is compared bit by bit.
    """
    named = {} if last else _state(replica)
    named |= {"the loss": losses, f"the {replica.objective.metric}": scores}
    unit = replica.inputs.unit
    named |= {f"the {unit} that the feed gave": batch.inputs, "the labels that the feed gave": batch.targets}
    sums = [_words(tensor).sum(dtype=torch.int64).to(replica.ranks.device) for tensor in named.values()]
    return tuple(named), torch.stack(sums)


def _differing(one: Sums, other: Sums) -> list[str]:
    mine, others = (dict(zip(names, sums.tolist(), strict=True)) for names, sums in (one, other))
    return [name for name in mine | others if mine.get(name) != others.get(name)]


def _differing_bits(one: LoopReplica, other: LoopReplica) -> list[str]:
    mine, others = _state(one), _state(other)
    return [
        name
        for name, tensor in mine.items()
        if name not in others or not torch.equal(_words(tensor), _words(others[name]))
    ]


def _state(replica: LoopReplica) -> dict[str, torch.Tensor]:
    """What this rank holds of weights, buffers and optimizer state, by name; the loss scale as a tensor."""
    state = replica.state()
    held: dict[str, Any] = dict(state["model"])
    weights = [name for name, _ in replica.module.named_parameters()]
    for index, parts in state["optimizer"]["state"].items():
        held |= {f"{kind} of {weights[index]}": part for kind, part in parts.items()}
    held = {name: one.rows if isinstance(one, OwnRows) else one for name, one in held.items()}
    found = {name: one for name, one in held.items() if isinstance(one, torch.Tensor)}
    return found | {"the loss scale": torch.tensor(replica.scaler.get_scale(), dtype=torch.float64)}


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of a tensor as integers: so -0.0 and 0.0 compare as different, and NaNs with equal bits as equal."""
    flat = tensor.detach().contiguous().flatten()
    flat = torch.view_as_real(flat).flatten() if flat.is_complex() else flat
    return flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])


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
