"""Replay check of the own loop: would an interrupted run end with the same bits? Checked once per run.

The recipe is imported again in the middle of the training, and a new model replays the steps after the first checkpoint
of an attempt. Its state is compared bit by bit with the state of the training. The training's own model, optimizer,
random generators and feed do not change.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch  # noqa: TID253 - imported by processes that train

from training.checkpoints.checkpoint_log import Position
from training.checkpoints.parts import OwnRows
from training.recipe import modules_set_aside
from training.records import ReplayOutcome
from training.trainers.generators import generators_kept
from training.trainers.network.checksums import Sums, checksums, differing, words
from training.trainers.network.feeds import Batch, Feed
from training.trainers.network.replay import NetworkReplay
from training.trainers.own_loop.replica import LoopReplica
from training.trainers.own_loop.unsaved_state import differing_globals, globals_of, unsaved_differences
from training.trainers.replay_outcome import different, equal

Rebuild = Callable[[], tuple[Feed | None, LoopReplica]]


@dataclass(frozen=True)
class _Watched:
    """Record of one training step: a checksum of each tensor, and the batch if the feed can't provide it again."""

    sums: Sums
    batch: Batch | None


@dataclass(kw_only=True)
class Replay(NetworkReplay):
    """The replay check of one attempt.

    `rebuild` imports the recipe again and builds a new replica and a new feed. The feed is None for a stream of rows,
    which can't be read twice.
    """

    replica: LoopReplica
    rebuild: Rebuild
    _watched: list[_Watched] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.left_out = self.replica.no_second_model
        super().__post_init__()

    @property
    def watching(self) -> bool:
        """Whether the caller must call :meth:`watch` after the next step."""
        return self._start is not None

    def watch(self, batch: Batch, losses: torch.Tensor, scores: torch.Tensor) -> float:
        """Record the step that the training has just done; after the last recorded step, replay all and compare.

        Returns the seconds that this call took, which the caller leaves out of speeds.
        """
        start = self._start
        assert start is not None
        began = time.perf_counter()
        with self.clock.time("replay check"):
            kept = batch if self.job.feed == "stream" else None
            last = len(self._watched) + 1 == self._count
            self._watched.append(_Watched(_checksums(self.replica, batch, losses, scores, last), kept))
            if last:
                with self.heartbeat.kept_beating(start.step + self._count):
                    self.check(start, lambda state: self._replayed(start, state))
                self._watched = []
        return time.perf_counter() - began

    def _replayed(self, start: Position, state: dict[str, Any]) -> ReplayOutcome:
        of_training = globals_of(self.job.paths.recipe)
        with generators_kept(), modules_set_aside(self.job.paths.recipe):
            feed, replica = self.rebuild()
            replica.load(state["learner"])
            first, changed = self._first_difference(start, feed, replica)
            unsaved = unsaved_differences(self.replica.module, replica.module)
            unsaved += differing_globals(of_training, globals_of(self.job.paths.recipe))
        ranks_with_any = self.ranks.add_up(float(bool(changed or unsaved)))[0]
        if not ranks_with_any:
            return equal(start.step, self._count)
        return different(start.step, self._count, first, changed, unsaved)

    def _first_difference(
        self, start: Position, feed: Feed | None, replica: LoopReplica
    ) -> tuple[int | None, list[str]]:
        """The first step after which anything differs, and the names of what differs; every rank runs all steps."""
        difference: tuple[int | None, list[str]] = None, []
        for number, batch in enumerate(self._batches(start, feed)):
            losses, scores = replica.step(batch, start.epoch, start.step + number)
            last = number + 1 == self._count
            names = _differing_bits(self.replica, replica) if last else []
            names += differing(self._watched[number].sums, _checksums(replica, batch, losses, scores, last))
            if names and difference[0] is None:
                difference = start.step + number + 1, names
        return difference

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
    return checksums(named, replica.ranks.device)


def _differing_bits(replica: LoopReplica, other: LoopReplica) -> list[str]:
    mine, others = _state(replica), _state(other)
    return [
        name
        for name, tensor in mine.items()
        if name not in others or not torch.equal(words(tensor), words(others[name]))
    ]


def _state(replica: LoopReplica) -> dict[str, torch.Tensor]:
    """What this rank holds of weights, buffers and optimizer state, by name; the loss scale as a tensor."""
    state = replica.state()
    held: dict[str, Any] = dict(state["model"])
    weights = [name for name, _ in replica.module.named_parameters()]
    for index, parts in state["optimizer"]["state"].items():
        held |= {f"{kind} of {weights[index]}": part for kind, part in parts.items()}
    held = {name: value.rows if isinstance(value, OwnRows) else value for name, value in held.items()}
    tensors = {name: value for name, value in held.items() if isinstance(value, torch.Tensor)}
    return tensors | {"the loss scale": torch.tensor(replica.scaler.get_scale(), dtype=torch.float64)}
