"""The training loop: runs in every worker, on one device or many, and resumes from the newest checkpoint."""

import logging
import math
import time
from dataclasses import astuple, dataclass, field
from typing import Any

from training.attempts.fence import Fence
from training.attempts.heartbeat import Heartbeat
from training.attempts.job import TrainingJob
from training.attempts.metrics import MetricsFile
from training.checkpoints.checkpoint_log import Position
from training.checkpoints.opening import different_checkpoints, open_checkpoints
from training.checkpoints.weights import save_weights, weights_digest
from training.data.dataset import Columns
from training.data.sample_order import Rows
from training.errors import StopRequestedError, TrainingError
from training.records import EpochMetrics, Goodput, TrainedModel
from training.storage.files import atomic_folder
from training.storage.paths import TRAINED
from training.storage.record_files import record_text
from training.trainers.accounting import Clock, metric_interval
from training.trainers.long_work import LongWork
from training.trainers.ranks import ControlConsensus, Ranks, device_name
from training.trainers.requests import SAVE, STOP, Requests
from training.trainers.torch.accumulators import Interval, Sums
from training.trainers.torch.feeds import Feed
from training.trainers.torch.own_settings import own_settings
from training.trainers.torch.replay import Rebuild, Replay
from training.trainers.torch.replica import Replica
from training.trainers.torch.schedule import learning_rate

log = logging.getLogger("evergreen.loop")


@dataclass
class Loop:
    """One worker's training, from the newest checkpoint to the finished model."""

    job: TrainingJob
    ranks: Ranks
    columns: Columns
    feed: Feed
    validation_rows: Rows
    replica: Replica
    total_steps: int
    heartbeat: Heartbeat
    fence: Fence  # checked on the first rank, which writes checkpoints, points and the model
    rebuild: Rebuild
    clock: Clock = field(default_factory=Clock)
    history: list[EpochMetrics] = field(default_factory=list)
    epoch_sums: Sums = field(default_factory=Sums)
    carried: Sums = field(default_factory=Sums)
    done: int = 0  # steps, for heartbeats

    def __post_init__(self) -> None:
        job, settings = self.job, self.job.settings
        self.metrics = MetricsFile(job.paths.metrics, self.total_steps, self.fence)
        same_for_any_workers = own_settings(settings).virtual_shards is not None
        self.checkpoints = open_checkpoints(
            job,
            self.fence,
            self.ranks.is_first,
            {"device": device_name(self.ranks)}
            | ({} if same_for_any_workers else {"workers": str(self.ranks.world_size)}),
            self._before_commit,
            lambda: self.heartbeat.beat(self.done),
            self.heartbeat.add_moved,
            self.metrics,
        )
        self.long_work = LongWork(self.ranks, self.heartbeat, settings.failure.collective_timeout_s)
        self.replica.before_update = self._let_copy
        self.agreement = ControlConsensus(self.ranks)
        self.requests = Requests(
            job.paths,
            settings.checkpoint.every_s,
            self.ranks.is_first,
            self.fence,
            lambda: self.checkpoints.busy,
            can_save=self.feed.exact,
        )
        per_epoch = self.feed.steps_per_epoch
        self.interval = metric_interval(settings, per_epoch)
        self.replay = Replay(
            job, self.ranks, self.long_work, self.replica, self.rebuild, self.checkpoints, self.fence, self.heartbeat,
            self.clock, self.total_steps, per_epoch,
        )  # fmt: skip

    def run(self, position: Position) -> None:
        """Train from `position` to the end; the first rank writes the finished model to `paths.model`."""
        while position.step < self.total_steps:
            position = self.run_epoch(position)
        with self.heartbeat.kept_beating(position.step):
            self.long_work.on_first(self.checkpoints.wait)
            self.long_work.on_first(self.finish)
            self.ranks.barrier()

    def resume(self) -> Position:
        """Load the newest undamaged checkpoint, if there is one, and return the position to train from.

        Raises the error of :func:`different_checkpoints` if the ranks found different checkpoints.
        """
        found = self.long_work.on_all(self.checkpoints.load_newest)
        position = found[0] if found else Position(0, 0, 0)
        # Ranks read the same folder, but one rank alone may read a damaged file: compare before the first step.
        if not self.ranks.all_equal(position.step):
            raise different_checkpoints(self.job)
        if found:
            self._load(found[1])
        if self.ranks.is_first:
            self.metrics.rewind(position.step)
            log.info("training starts at step %d of %d", position.step, self.total_steps)
        self.replay.enter(position.step)
        return position

    def _load(self, state: dict[str, Any]) -> None:
        self.replica.load(state["learner"])
        self.history = [EpochMetrics.model_validate(row) for row in state["history"]]
        self.epoch_sums = Sums(*state["epoch_sums"])
        shares = [Sums(*share) for share in state["interval_sums"]]
        if len(shares) == self.ranks.world_size:
            self.carried = shares[self.ranks.rank]
        elif self.ranks.is_first:  # the number of workers has changed: only the sum over all workers matters
            self.carried = sum(shares, start=Sums())

    def run_epoch(self, position: Position) -> Position:
        """Run the steps of an epoch from `position` on, validate and save; return the next epoch's start."""
        began = time.perf_counter()
        step, since, rows = position.step, self._interval(), 0
        batches = self.feed.batches(position.epoch, position.step_in_epoch)
        for in_epoch in range(position.step_in_epoch, self.feed.steps_per_epoch):
            with self.clock.time("data wait"):
                batch = next(batches)
            before = self.replica.communication.exposed_s
            with self.clock.time("compute"):
                losses, scores = self.replica.step(batch, position.epoch, step)
                since.add(losses, scores, batch.rows)
            self._book_communication(before)
            if self.replay.watching:
                away = self.replay.watch(batch, losses, scores)  # seconds, left out of all speeds
                began, since.began = began + away, since.began + away
            step, rows = step + 1, rows + batch.global_rows
            self.done = step
            self.heartbeat.beat(step)
            last = in_epoch + 1 == self.feed.steps_per_epoch or step == self.total_steps
            if last or (in_epoch + 1) % self.interval == 0:
                self._report(since, step, position.epoch)
                since = self._interval()
            if last:
                break
            self._between_steps(Position(position.epoch, in_epoch + 1, step), since)
        self._end_epoch(position.epoch, step, rows / (time.perf_counter() - began))
        return Position(position.epoch + 1, 0, step)

    def _interval(self) -> Interval:
        carried, self.carried = self.carried, Sums()
        return Interval(
            carried.loss,
            carried.scores,
            int(carried.rows),
            int(carried.checksum),
            waited_before=self.clock.parts.get("data wait", 0.0),
        )

    def _between_steps(self, position: Position, since: Interval) -> None:
        """Save a checkpoint if one is due, and stop if that was requested; all ranks do so after the same step.

        Raises :class:`StopRequestedError` to stop, once the newest checkpoint is written.
        """
        request = self.agreement.exchange(self.requests.read())
        every = self.job.settings.checkpoint.every_steps
        due = request >= SAVE or (every is not None and position.step % every == 0)
        due = due or self.replay.needs_checkpoint(position.step)
        if due and self.feed.exact:
            shares = self.ranks.gather(since.as_tensor(self.ranks))
            self._save(position, None, [share.tolist() for share in shares])
            self.replay.saved(position)
        if request == STOP:
            self.long_work.on_first(self.checkpoints.wait)
            self.ranks.barrier()
            place = "there" if self.feed.exact else "at its newest checkpoint, the end of an epoch"
            raise StopRequestedError(
                f"training stopped on request at step {position.step} of {self.total_steps}; "
                f"the same command resumes {place}"
            )

    def _before_commit(self) -> None:
        """Make the metric points as durable as the checkpoint, and check that this attempt may still write."""
        self.metrics.sync()
        self.fence.check()

    def _book_communication(self, before: float) -> None:
        exposed = self.replica.communication.exposed_s - before
        self.clock.parts["communication"] = self.clock.parts.get("communication", 0.0) + exposed
        self.clock.parts["compute"] -= exposed

    def _report(self, since: Interval, step: int, epoch: int) -> None:
        """All-reduce the interval's sums over all ranks and write them as one metric point."""
        with self.clock.time("compute"):
            self.ranks.synchronize()
        with self.clock.time("communication"):
            sums = Sums(*self.ranks.add_up(*since.as_tensor(self.ranks)))
        self.epoch_sums += sums
        seconds = time.perf_counter() - since.began
        waited = self.clock.parts.get("data wait", 0.0) - since.waited_before
        objective = self.replica.objective
        values = {
            "train/loss": sums.loss / sums.rows,
            f"train/{objective.metric}": objective.reduced(sums.scores, sums.rows),
            "train/learning_rate": learning_rate(own_settings(self.job.settings), step - 1, self.total_steps),
            f"speed/{self.replica.inputs.unit}_per_s": since.share_here * sums.rows / seconds,
            "speed/data_wait_share": waited / seconds,
        }
        self._write(step, epoch, values)

    def _write(self, step: int, epoch: int, values: dict[str, float]) -> None:
        """Write a metric point on the first rank. Every rank raises before the next step if a value is not finite."""
        if self.ranks.is_first:
            self.metrics.append(step, epoch + 1, values)
        elif not all(map(math.isfinite, values.values())):
            raise TrainingError(f"training diverged at step {step}")

    def _end_epoch(self, epoch: int, step: int, rows_per_s: float) -> None:
        with self.clock.time("validation"):
            loss, score = self.replica.validate(
                self.columns, self.validation_rows, lambda: self.heartbeat.beat(step)
            )
        sums, self.epoch_sums = self.epoch_sums, Sums()
        objective = self.replica.objective
        row = EpochMetrics(
            epoch=epoch + 1,
            step=step,
            train_loss=sums.loss / sums.rows,
            train_score=objective.reduced(sums.scores, sums.rows),
            validation_loss=loss,
            validation_score=score,
            learning_rate=learning_rate(own_settings(self.job.settings), step - 1, self.total_steps),
            images_per_s=rows_per_s,
            rows=int(sums.rows),
            checksum=int(sums.checksum),
        )
        validation = {"validation/loss": loss, f"validation/{objective.metric}": score}
        self._write(step, epoch, validation | {"epoch": float(epoch + 1)})
        self.history.append(row)
        self._save(Position(epoch + 1, 0, step), loss, [])
        self.replay.saved(Position(epoch + 1, 0, step))

    def _save(self, position: Position, score: float | None, interval_sums: list[list[float]]) -> None:
        """Save the state at `position`; only the first rank writes. All ranks wait for the write before it."""
        with self.clock.time("checkpoint"):
            self.long_work.on_first(self.checkpoints.wait)
            if not self.ranks.is_first:
                return
            state = {
                "learner": self.replica.state(),
                "history": [row.model_dump() for row in self.history],
                "epoch_sums": list(astuple(self.epoch_sums)),
                "interval_sums": interval_sums,
            }
            # Epoch-end checkpoints may become the model, so their state is copied synchronously: the copy must not
            # depend on the assumption that forward passes leave weights unchanged.
            steady = self.replica.changed_by_update_alone() if score is None else frozenset[int]()
            self.checkpoints.save(position, state, score, steady)
        self.requests.saved()

    def _let_copy(self) -> None:
        with self.clock.time("checkpoint"):
            self.checkpoints.wait_until_copied()

    def finish(self) -> None:
        """Write the selected epoch's weights and the record of the training, in one atomic rename.

        Raises :class:`training.errors.TransientError` if metric points or the checkpoint were damaged meanwhile.
        """
        self.metrics.check()
        chosen = self.history[-1]
        if own_settings(self.job.settings).select == "best":
            chosen = min(self.history, key=lambda row: (row.validation_loss, row.epoch))
        replay = self.replay.outcome()
        weights = self.checkpoints.load_step(chosen.step)["learner"]["model"]
        with atomic_folder(self.job.paths.model) as folder:
            save_weights(weights, folder / "weights.safetensors")
            trained = TrainedModel(
                run_key=self.job.run_key,
                weights=str(self.job.paths.model / "weights.safetensors"),
                weights_digest=weights_digest(weights),
                selected_epoch=chosen.epoch,
                steps=self.total_steps,
                world_size=self.ranks.world_size,
                device=str(self.ranks.device.type),
                history=tuple(self.history),
                seconds=sum(self.clock.parts.values()),
                goodput=Goodput(total_s=sum(self.clock.parts.values()), parts=dict(self.clock.parts)),
                reproducible=replay.reproducible,
                reproducible_reason=replay.reason,
            )
            (folder / TRAINED).write_text(record_text(TRAINED, trained, self.job.paths.root.name))
            self._before_commit()
        self.checkpoints.publish_model(self.job.paths)
        self.heartbeat.finish(self.total_steps)
