"""The replay check as a training calls it, and its replacement for a trainer without one."""

from dataclasses import dataclass
from typing import Protocol

from training.checkpoints.checkpoint_log import Position
from training.records import ReplayOutcome
from training.trainers.replay_outcome import unchecked


class ReplayCheck(Protocol):
    """The methods of a replay check that :class:`training.trainers.network.progress.Progress` calls."""

    def enter(self, step: int) -> None:
        """Called when training starts at `step`."""

    def needs_checkpoint(self, step: int) -> bool:
        """Whether to save a checkpoint after `step`."""

    def saved(self, position: Position) -> None:
        """Called on all ranks when a checkpoint at `position` is being saved."""

    def outcome(self) -> ReplayOutcome:
        """The outcome of the run's replay check, or why there was no replay."""


@dataclass(frozen=True)
class NoReplay:
    """Replaces the replay check for a trainer without replay check; the run's record gets `reason`."""

    reason: str

    def enter(self, step: int) -> None:
        """See :class:`ReplayCheck`."""

    def needs_checkpoint(self, step: int) -> bool:
        """See :class:`ReplayCheck`."""
        del step
        return False

    def saved(self, position: Position) -> None:
        """See :class:`ReplayCheck`."""

    def outcome(self) -> ReplayOutcome:
        """See :class:`ReplayCheck`."""
        return unchecked(self.reason)
