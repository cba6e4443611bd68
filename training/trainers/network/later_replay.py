"""Replay check of a trainer whose steps a library or the recipe runs: would an interrupted run end with the same bits?

After the last step of the training, the recipe is imported again, and the library starts a second training from the
first checkpoint of the attempt. The second training ends after a few steps, and writes nothing. After each step, the
tensors of its model are compared with those that the training had.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import nn  # noqa: TID253 - imported by processes that train

from training.checkpoints.checkpoint_log import Position
from training.recipe import Recipe, modules_set_aside
from training.records import ReplayOutcome
from training.trainers.generators import generators_kept
from training.trainers.network.building import import_recipe
from training.trainers.network.checksums import Sums, checksums, differing
from training.trainers.network.learner import Learner
from training.trainers.network.progress import Epoch, Progress
from training.trainers.network.replay import NetworkReplay
from training.trainers.replay_outcome import different, equal

_REMEDY = (
    "Keep what the next step depends on in the checkpoint, as a buffer of the module or in the state of an object that "
    "has one; or look for numbers that Evergreen does not seed, such as those of the clock, and for kernels that are "
    "not deterministic: training.deterministic=refuse names those."
)
_BEGINNING = Position(0, 0, 0)
ModuleOf = Callable[[], nn.Module]
Run = Callable[[Progress], None]  # calls `resume` of the progress, then runs the steps
# Prepares a second training of a newly imported recipe: its learner, its module, and a function that trains.
Prepare = Callable[[Recipe], tuple[Learner, ModuleOf, Run]]


class _AllRepeatedError(Exception):
    """Ends the second training after the steps to compare."""


@dataclass
class WatchedProgress(Progress):
    """Progress of a training whose replay check runs after the last step. `module` returns the trained model."""

    module: ModuleOf = nn.Module

    def __post_init__(self) -> None:
        super().__post_init__()
        self.replay = self.later = LaterReplay(
            self.job, self.ranks, self.long_work, self.checkpoints, self.fence, self.heartbeat, self.clock,
            self.total_steps, self.steps_per_epoch, progress=self,
        )  # fmt: skip

    def finish_step(self, epoch: Epoch, rows: int) -> bool:
        """See :meth:`Progress.finish_step`."""
        over = super().finish_step(epoch, rows)
        self.later.watch(epoch.step)
        return over


@dataclass
class _Repeated(Progress):
    """Progress of the second training, which writes nothing, and ends after `count` steps with an exception."""

    module: ModuleOf = nn.Module
    start: Position = _BEGINNING
    state: dict[str, Any] = field(default_factory=dict)
    count: int = 1
    seen: list[Sums] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.interval = self.steps_per_epoch + 1  # no metric point

    def resume(self) -> Position:
        """Load the checkpoint from which the steps are repeated."""
        self.learner.load(self.state)
        return self.start

    def finish_step(self, epoch: Epoch, rows: int) -> bool:
        """Record the step. Raises :class:`_AllRepeatedError` after the last step to compare."""
        epoch.in_epoch, epoch.step, epoch.rows = epoch.in_epoch + 1, epoch.step + 1, epoch.rows + rows
        self.seen.append(_sums(self))
        if len(self.seen) == self.count:
            raise _AllRepeatedError
        return False


@dataclass(kw_only=True)
class LaterReplay(NetworkReplay):
    """The replay check of one attempt, which :meth:`after_training` completes."""

    progress: WatchedProgress
    _watched: list[Sums] = field(default_factory=list)

    def watch(self, step: int) -> None:
        """Record the model after step `step`, if that step is to be repeated."""
        if self._start is not None and step > self._start.step and len(self._watched) < self._count:
            with self.clock.time("replay check"):
                self._watched.append(_sums(self.progress))

    def after_training(
        self, prepare: Prepare, surroundings: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """Repeat the recorded steps within `surroundings`, and record the outcome; all ranks call this method."""
        start = self._start
        if start is None or len(self._watched) < self._count:
            return
        with self.clock.time("replay check"), self.heartbeat.kept_beating(self.total_steps):
            self.check(start, lambda state: self._replayed(start, state, prepare, surroundings))

    def _replayed(
        self,
        start: Position,
        state: dict[str, Any],
        prepare: Prepare,
        surroundings: Callable[[], AbstractContextManager[None]],
    ) -> ReplayOutcome:
        with generators_kept(), modules_set_aside(self.job.paths.recipe), surroundings():
            learner, module, run = prepare(import_recipe(self.job))
            first = self.progress
            again = _Repeated(
                self.job, self.ranks, first.columns, first.validation_rows, learner, self.total_steps,
                self.steps_per_epoch, first.exact, self.heartbeat, self.fence,
                module=module, start=start, state=state["learner"], count=self._count,
            )  # fmt: skip
            with _until_all_are_repeated():
                run(again)
        difference: tuple[int | None, list[str]] = None, []
        for number, (watched, repeated) in enumerate(zip(self._watched, again.seen, strict=True)):
            names = differing(watched, repeated)
            if names and difference[0] is None:
                difference = start.step + number + 1, names
        if not self.ranks.add_up(float(bool(difference[1])))[0]:
            return equal(start.step, self._count)
        return different(start.step, self._count, *difference, (), _REMEDY)


@contextmanager
def _until_all_are_repeated() -> Iterator[None]:
    try:
        yield
    except _AllRepeatedError:
        return
    raise RuntimeError("the second training ended before the steps to compare")


def _sums(progress: WatchedProgress | _Repeated) -> Sums:
    return checksums(progress.module().state_dict(), progress.ranks.device)
