"""Progress of one worker's training of a network: metric points, checkpoints, requests to save or stop, the model.

The training loop may be Evergreen's, a library's or the recipe's. The loop calls :meth:`Progress.resume` once; for each
epoch :meth:`Progress.begin_epoch`, :meth:`Progress.finish_step` after each step, and :meth:`Progress.end_epoch`; at the
end :meth:`Progress.finish`. All ranks make the same calls.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from training.attempts.fence import Fence
from training.attempts.heartbeat import Heartbeat
from training.attempts.job import TrainingJob
from training.attempts.metrics import MetricsFile
from training.checkpoints.checkpoint_files import contract
from training.checkpoints.checkpoint_log import Position
from training.checkpoints.opening import different_checkpoints, open_checkpoints
from training.checkpoints.parts import whole
from training.checkpoints.weights import save_weights, weights_digest
from training.data.dataset import Columns
from training.data.sample_order import Rows
from training.errors import StopRequestedError, TrainingError
from training.problems.objectives import objective_named
from training.records import EpochMetrics
from training.storage.files import digest_json
from training.trainers.accounting import Clock, metric_interval
from training.trainers.exchange import writers_of
from training.trainers.finished_model import FinishedTraining, selected_epoch, write_model
from training.trainers.long_work import LongWork
from training.trainers.network.accumulators import Interval, Sums
from training.trainers.network.learner import Learner
from training.trainers.network.own_settings import network_settings
from training.trainers.network.replay_check import NoReplay, ReplayCheck
from training.trainers.ranks import ControlConsensus, Ranks, backend_name, device_name
from training.trainers.requests import SAVE, STOP, Requests

log = logging.getLogger("evergreen.loop")

WEIGHTS = "weights.safetensors"


def _ignored(weights: dict[str, Any]) -> None:
    """No check of the finished model's weights."""
    del weights


@dataclass
class Epoch:
    """The current epoch; `number` is 0 for the first.

    `in_epoch` counts the finished steps of the epoch, `step` those of the training. `since` has the sums since the last
    metric point. `rows` counts the rows that this attempt has used in the epoch, and `began` is the time
    (`time.perf_counter`) at which this attempt began the epoch.
    """

    number: int
    in_epoch: int
    step: int
    since: Interval
    rows: int = 0
    began: float = field(default_factory=time.perf_counter)

    def leave_out(self, seconds: float) -> None:
        """Leave `seconds` that were spent on other work out of the speeds."""
        self.began, self.since.began = self.began + seconds, self.since.began + seconds


@dataclass
class Progress:
    """One worker's progress, from the newest checkpoint to the finished model.

    `exact` says whether an epoch can start at any step; otherwise checkpoints are saved only at ends of epochs.
    `same_for_any_workers` says whether every number of workers gives the same weights. `sharded` says whether each rank
    holds a part of the state, and so writes a part of each checkpoint. The first rank calls `check_weights` with the
    weights of the finished model, before these are written.
    """

    job: TrainingJob
    ranks: Ranks
    columns: Columns
    validation_rows: Rows
    learner: Learner
    total_steps: int
    steps_per_epoch: int
    exact: bool
    heartbeat: Heartbeat
    fence: Fence  # checked on the first rank, which writes checkpoints, points and the model
    same_for_any_workers: bool = False
    sharded: bool = False
    check_weights: Callable[[dict[str, Any]], None] = _ignored
    replay: ReplayCheck = field(default=NoReplay("the trainer has no replay check"))
    clock: Clock = field(default_factory=Clock)
    history: list[EpochMetrics] = field(default_factory=list)
    epoch_sums: Sums = field(default_factory=Sums)
    carried: Sums = field(default_factory=Sums)
    done: int = 0  # steps, for heartbeats

    def __post_init__(self) -> None:
        job, settings = self.job, self.job.settings
        self.objective = objective_named(job.dataset.problem)
        self.metrics = MetricsFile(job.paths.metrics, self.total_steps, self.fence)
        self.checkpoints = open_checkpoints(
            job,
            self.fence,
            self.ranks.is_first,
            self._conditions(),
            self._before_commit,
            lambda: self.heartbeat.beat(self.done),
            self.heartbeat.add_moved,
            self.metrics,
            writers_of(self.ranks, self.fence) if self.sharded else None,
        )
        self.long_work = LongWork(self.ranks, self.heartbeat, settings.failure.collective_timeout_s)
        self.agreement = ControlConsensus(self.ranks)
        self.requests = Requests(
            job.paths,
            settings.checkpoint.every_s,
            self.ranks.is_first,
            self.fence,
            lambda: self.checkpoints.busy,
            can_save=self.exact,
        )
        self.interval = metric_interval(settings, self.steps_per_epoch)

    def _conditions(self) -> dict[str, str]:
        """What the last bits of this training depend on, besides the run key and the process."""
        device = {"device": device_name(self.ranks)}
        if self.same_for_any_workers:
            return device
        return device | {"workers": str(self.ranks.world_size), "backend": backend_name(self.ranks)}

    def resume(self) -> Position:
        """Load the newest undamaged checkpoint, if there is one, and return the position to train from.

        Raises the error of :func:`different_checkpoints` if the ranks found different checkpoints.
        """
        checkpoint = self.long_work.on_all(self.checkpoints.load_newest)
        position = checkpoint[0] if checkpoint else Position(0, 0, 0)
        # Ranks read the same folder, but one rank alone may read a damaged file: compare before the first step.
        if not self.ranks.all_equal(position.step):
            raise different_checkpoints(self.job)
        if checkpoint:
            self._load(checkpoint[1])
        if self.ranks.is_first:
            self.metrics.rewind(position.step)
            log.info("training starts at step %d of %d", position.step, self.total_steps)
        self.replay.enter(position.step)
        return position

    def _load(self, state: dict[str, Any]) -> None:
        self.learner.load(state["learner"])
        self.history = [EpochMetrics.model_validate(row) for row in state["history"]]
        self.epoch_sums = Sums(*state["epoch_sums"])
        shares = [Sums(*share) for share in state["interval_sums"]]
        if len(shares) == self.ranks.world_size:
            self.carried = shares[self.ranks.rank]
        elif self.ranks.is_first:  # the number of workers has changed: only the sum over all workers matters
            self.carried = sum(shares, start=Sums())

    def begin_epoch(self, position: Position) -> Epoch:
        """Begin the epoch of `position`, or continue the epoch at the step of `position`."""
        return Epoch(position.epoch, position.step_in_epoch, position.step, self._interval())

    def finish_step(self, epoch: Epoch, rows: int) -> bool:
        """Count a finished step, which used `rows` rows on all workers; `epoch.since` has its sums.

        Returns True if the step ends the epoch. Writes a metric point, saves a checkpoint and stops the training if
        due; all ranks do so after the same step.
        """
        epoch.in_epoch, epoch.step, epoch.rows = epoch.in_epoch + 1, epoch.step + 1, epoch.rows + rows
        self.done = epoch.step
        self.heartbeat.beat(epoch.step)
        last = epoch.in_epoch == self.steps_per_epoch or epoch.step == self.total_steps
        if last or epoch.in_epoch % self.interval == 0:
            self._report(epoch)
            epoch.since = self._interval()
        if not last:
            self._between_steps(Position(epoch.number, epoch.in_epoch, epoch.step), epoch.since)
        return last

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
        if due and self.exact:
            shares = self.ranks.gather(since.as_tensor(self.ranks))
            self._save(position, None, [share.tolist() for share in shares])
            self.replay.saved(position)
        if request == STOP:
            self._stop(position, "there" if self.exact else "at its newest checkpoint, the end of an epoch")

    def _stop(self, position: Position, resumes: str) -> None:
        """Wait until the newest checkpoint is written, and raise :class:`StopRequestedError`, on all ranks.

        The message says where the same command `resumes`.
        """
        self.long_work.on_all(self.checkpoints.wait)
        self.ranks.barrier()
        raise StopRequestedError(
            f"training stopped on request at step {position.step} of {self.total_steps}; "
            f"the same command resumes {resumes}"
        )

    def _before_commit(self) -> None:
        """Make the metric points as durable as the checkpoint, and check that this attempt may still write."""
        self.metrics.sync()
        self.fence.check()

    def _report(self, epoch: Epoch) -> None:
        """All-reduce the interval's sums over all ranks and write them as one metric point."""
        since = epoch.since
        with self.clock.time("compute"):
            self.ranks.synchronize()
        with self.clock.time("communication"):
            sums = Sums(*self.ranks.add_up(*since.as_tensor(self.ranks)))
        self.epoch_sums += sums
        seconds = time.perf_counter() - since.began
        waited = self.clock.parts.get("data wait", 0.0) - since.waited_before
        values = {
            "train/loss": sums.loss / sums.rows,
            f"train/{self.objective.metric}": self.objective.reduced(sums.scores, sums.rows),
            "train/learning_rate": self.learner.learning_rate(epoch.step - 1),
            f"speed/{self.learner.unit}_per_s": since.share_here * sums.rows / seconds,
            "speed/data_wait_share": waited / seconds,
        }
        self._write(epoch.step, epoch.number, values | self.learner.logged(at_epoch_end=False))

    def _write(self, step: int, epoch: int, values: dict[str, float]) -> None:
        """Write a metric point on the first rank. Every rank raises before the next step if a value is not finite."""
        if self.ranks.is_first:
            self.metrics.append(step, epoch + 1, values)
        elif not all(map(math.isfinite, values.values())):
            raise TrainingError(
                f"training diverged at step {step}: a metric is not a finite number. Lower training.learning_rate, set "
                "training.clip_norm, or use training.precision=float32."
            )

    def end_epoch(self, epoch: Epoch) -> Position:
        """Validate, save the end of the epoch, and return the start of the next epoch.

        Raises :class:`StopRequestedError` if a stop was requested, since an epoch of one step checks for requests only
        here; after the last epoch, the training finishes instead.
        """
        rows_per_s = epoch.rows / (time.perf_counter() - epoch.began)
        self._check_same_weights(epoch)
        with self.clock.time("validation"):
            loss, score = self.learner.validate(
                self.columns, self.validation_rows, lambda: self.heartbeat.beat(epoch.step)
            )
            logged = self.learner.logged(at_epoch_end=True)
        sums, self.epoch_sums = self.epoch_sums, Sums()
        row = EpochMetrics(
            epoch=epoch.number + 1,
            step=epoch.step,
            train_loss=sums.loss / sums.rows,
            train_score=self.objective.reduced(sums.scores, sums.rows),
            validation_loss=loss,
            validation_score=score,
            learning_rate=self.learner.learning_rate(epoch.step - 1),
            images_per_s=rows_per_s,
            rows=int(sums.rows),
            checksum=int(sums.checksum),
        )
        values = {"validation/loss": loss, f"validation/{self.objective.metric}": score}
        values |= {"epoch": float(epoch.number + 1)} | logged
        self._write(epoch.step, epoch.number, values)
        self.history.append(row)
        position = Position(epoch.number + 1, 0, epoch.step)
        self._save(position, loss, [])
        self.replay.saved(position)
        if position.step < self.total_steps and self.agreement.exchange(self.requests.read()) == STOP:
            self._stop(position, "there")
        return position

    def _check_same_weights(self, epoch: Epoch) -> None:
        """Raise :class:`TrainingError` on all ranks if their weights differ: a checkpoint has those of the first.

        Ranks on different processors are not compared, since an optimizer's last bits may differ there.
        """
        from training.trainers.network.checksums import checksum

        weights = self.learner.same_weights() if self.ranks.distributed else []
        processor = digest_json(contract() | {"device": device_name(self.ranks)})
        alike = bool(weights) and self.ranks.all_equal(int(processor[:15], 16))
        if alike and not self.ranks.all_equal(checksum(weights)):
            raise TrainingError(
                f"after epoch {epoch.number + 1} the workers have different weights: a part of the model was trained "
                "without exchanging gradients, a learning rate depends on the worker, or a forward pass changes "
                "weights, as max_norm of an embedding does. Leave requires_grad as build_model sets it, call in "
                "each pass the module that exchanges gradients, and compute what a scheduler monitors from all "
                "workers; or train with scaling.num_workers=1."
            )

    def _save(self, position: Position, score: float | None, interval_sums: list[list[float]]) -> None:
        """Save the state at `position`: the first rank writes, or all ranks if the state is sharded.

        All ranks wait for the write before it.
        """
        with self.clock.time("checkpoint"):
            self.long_work.on_all(self.checkpoints.wait)
            learner = self.learner.state()
            if not self.ranks.is_first and not self.sharded:
                return
            state = {
                "learner": learner,
                "history": [row.model_dump() for row in self.history],
                "epoch_sums": list(astuple(self.epoch_sums)),
                "interval_sums": interval_sums,
            }
            # Epoch-end checkpoints may become the model, so their state is copied synchronously: the copy must not
            # depend on the assumption that forward passes leave weights unchanged.
            steady = self.learner.changed_by_update_alone() if score is None else frozenset[int]()
            self.checkpoints.save(position, state, score, steady)
        self.requests.saved()

    def finish(self) -> None:
        """Wait for the newest checkpoint; the first rank writes the finished model to `paths.model`.

        Raises :class:`training.errors.TransientError` if metric points or the checkpoint were damaged meanwhile.
        """
        with self.heartbeat.kept_beating(self.total_steps):
            self.long_work.on_all(self.checkpoints.wait)
            self.long_work.on_first(self._write_model)
            self.ranks.barrier()

    def _write_model(self) -> None:
        """Write the selected epoch's weights and the record of the training, by one atomic rename."""
        self.metrics.check()
        selected = selected_epoch(self.history, best=network_settings(self.job.settings).select == "best")
        training = FinishedTraining(
            history=self.history,
            selected=selected,
            steps=self.total_steps,
            world_size=self.ranks.world_size,
            device=str(self.ranks.device.type),
            seconds=self.clock.parts,
            replay=self.replay.outcome(),
        )
        read = self.checkpoints.load_step(selected.step)["learner"]["model"]
        weights = whole(read, self.heartbeat.add_moved)
        self.check_weights(weights)

        def write(file: Path) -> str:
            save_weights(weights, file)
            return weights_digest(weights)

        write_model(self.job, training, WEIGHTS, write, self._before_commit)
        self.checkpoints.publish_model(self.job.paths)
        self.heartbeat.finish(self.total_steps)
