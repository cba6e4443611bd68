"""The training loop: runs in every worker, on one device or many, and resumes from the newest checkpoint."""

from dataclasses import dataclass

from training.attempts.fence import Fence
from training.attempts.heartbeat import Heartbeat
from training.attempts.job import TrainingJob
from training.checkpoints.checkpoint_log import Position
from training.data.dataset import Columns
from training.data.sample_order import Rows
from training.trainers.network.feeds import Feed
from training.trainers.network.progress import Progress
from training.trainers.own_loop.replay import Rebuild, Replay
from training.trainers.own_loop.replica import LoopReplica
from training.trainers.ranks import Ranks


@dataclass
class Loop:
    """One worker's training, from the newest checkpoint to the finished model."""

    job: TrainingJob
    ranks: Ranks
    columns: Columns
    feed: Feed
    validation_rows: Rows
    replica: LoopReplica
    total_steps: int
    heartbeat: Heartbeat
    fence: Fence
    rebuild: Rebuild

    def __post_init__(self) -> None:
        self.progress = progress = Progress(
            self.job,
            self.ranks,
            self.columns,
            self.validation_rows,
            self.replica,
            self.total_steps,
            self.feed.steps_per_epoch,
            self.feed.exact,
            self.heartbeat,
            self.fence,
            same_for_any_workers=self.replica.same_for_any_workers,
            sharded=self.replica.sharded,
            check_weights=self.replica.check_weights,
        )
        self.clock = progress.clock
        self.replica.before_update = self._wait_until_copied
        self.replay = progress.replay = Replay(
            self.job, self.ranks, progress.long_work, progress.checkpoints, self.fence, self.heartbeat, self.clock,
            self.total_steps, self.feed.steps_per_epoch, replica=self.replica, rebuild=self.rebuild,
        )  # fmt: skip

    def run(self, position: Position) -> None:
        """Train from `position` to the end; the first rank writes the finished model to `paths.model`."""
        while position.step < self.total_steps:
            position = self.run_epoch(position)
        self.progress.finish()

    def run_epoch(self, position: Position) -> Position:
        """Run the steps of an epoch from `position` on, validate and save; return the next epoch's start."""
        epoch, last = self.progress.begin_epoch(position), False
        batches = self.feed.batches(position.epoch, position.step_in_epoch)
        while not last:
            with self.clock.time("data wait"):
                batch = next(batches)
            before = self.replica.communication.exposed_s
            with self.clock.time("compute"):
                losses, scores = self.replica.step(batch, epoch.number, epoch.step)
                epoch.since.add(losses, scores, batch.rows)
            self._book_communication(before)
            if self.replay.watching:
                epoch.leave_out(self.replay.watch(batch, losses, scores))
            last = self.progress.finish_step(epoch, batch.global_rows)
        return self.progress.end_epoch(epoch)

    def _book_communication(self, before: float) -> None:
        exposed = self.replica.communication.exposed_s - before
        self.clock.parts["communication"] = self.clock.parts.get("communication", 0.0) + exposed
        self.clock.parts["compute"] -= exposed

    def _wait_until_copied(self) -> None:
        with self.clock.time("checkpoint"):
            self.progress.checkpoints.wait_until_copied()
