"""The training loop of boosted trees: every worker runs the boosting rounds in blocks, from the newest checkpoint on.

A checkpoint holds the model at the end of a block of :data:`training.trainers.boosting.rounds.ROUNDS_PER_BLOCK` rounds,
as :mod:`training.trainers.boosting.rounds` explains.
"""

import hashlib
import logging
import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic

import numpy as np

from training.attempts.fence import Fence
from training.attempts.heartbeat import Heartbeat
from training.attempts.job import TrainingJob
from training.attempts.metrics import MetricsFile
from training.checkpoints.checkpoint_log import Position
from training.checkpoints.opening import different_checkpoints, open_checkpoints
from training.errors import StopRequestedError, TrainingError
from training.records import EpochMetrics
from training.trainers.accounting import Clock, metric_interval
from training.trainers.boosting.replay import Replay
from training.trainers.boosting.results import Results
from training.trainers.boosting.rounds import Block, Boosting, Model, Round, block_end
from training.trainers.early_stopping import early_end, last_epoch
from training.trainers.finished_model import FinishedTraining, selected_epoch, write_model
from training.trainers.long_work import LongWork
from training.trainers.ranks import Ranks, device_name
from training.trainers.requests import SAVE, STOP, Requests

log = logging.getLogger("evergreen.loop")


@dataclass
class Loop(Generic[Model]):
    """One worker's training, from the newest checkpoint to the finished model.

    `rows` is the number of rows that all workers together learn from, and `checksum` that of their identifiers.
    `model_file` is the name of the finished model's file.
    """

    job: TrainingJob
    ranks: Ranks
    boosting: Boosting[Model]
    rows: int
    checksum: int
    model_file: str
    heartbeat: Heartbeat
    fence: Fence  # checked on the first rank, which writes checkpoints, metric points and the model
    clock: Clock = field(default_factory=Clock)
    history: list[EpochMetrics] = field(default_factory=list)
    saved_round: int = 0
    save_requested: bool = False
    done: int = 0  # finished rounds, for heartbeats
    stopped: str = ""  # why training ends before the last round of the settings

    def __post_init__(self) -> None:
        job, settings = self.job, self.job.settings
        self.total = settings.training.total_epochs
        self.device = self.boosting.device
        self.interval = metric_interval(settings, 1)
        self.metrics = MetricsFile(job.paths.metrics, self.total, self.fence)
        device = device_name(self.ranks) if self.device == "cuda" else "cpu"
        self.checkpoints = open_checkpoints(
            job,
            self.fence,
            self.ranks.is_first,
            {
                "device": device,
                "workers": str(self.ranks.world_size),
                self.boosting.library.lower(): self.boosting.version,
            },
            self._before_commit,
            lambda: self.heartbeat.beat(self.done),
            self.heartbeat.add_moved,
            self.metrics,
        )
        self.long_work = LongWork(self.ranks, self.heartbeat, settings.failure.collective_timeout_s)
        self.results = Results(self.ranks, self.boosting)
        self.requests = Requests(
            job.paths,
            settings.checkpoint.every_s,
            self.ranks.is_first,
            self.fence,
            lambda: self.checkpoints.busy,
        )
        self.replay = Replay(
            job, self.ranks, self.long_work, self.boosting, self.checkpoints, self.fence, self.heartbeat, self.clock
        )  # fmt: skip

    def resume(self) -> Block:
        """Load the newest undamaged checkpoint, if there is one, and return the block to train from.

        Raises the error of :func:`different_checkpoints` if the ranks found different checkpoints.
        """
        checkpoint = self.long_work.on_all(self.checkpoints.load_newest)
        position = checkpoint[0] if checkpoint else Position(0, 0, 0)
        # Ranks read the same folder, but one rank alone may read a damaged file: compare before the first round.
        if not self.ranks.all_equal(position.step):
            raise different_checkpoints(self.job)
        state: dict[str, Any] = checkpoint[1] if checkpoint else {"history": []}
        self.history = [EpochMetrics.model_validate(row) for row in state["history"]]
        self._find_end()
        if self.ranks.is_first:
            self.metrics.rewind(position.step)
            log.info("training starts at round %d of %d", position.step, self.total)
        self.saved_round = self.done = position.step
        self.replay.enter(position.step)
        return Block(position.step, state["booster"].numpy().tobytes() if checkpoint else b"")

    def run(self, start: Block) -> None:
        """Train from `start` to the end; the first rank writes the finished model to `paths.model`."""
        with self.clock.time("compute"):
            model = self.boosting.model(start.content, start.round)
        while self.done < self.total:
            if self.done > start.round:
                with self.clock.time("compute"):
                    model = self.boosting.next_block(model, self.done)
            self._run_block(model, self.done)
        if self.ranks.is_first and self.stopped:
            log.info("training %s", self.stopped)
        with self.heartbeat.kept_beating(self.total):
            self.long_work.on_first(self.checkpoints.wait)
            self.long_work.on_first(lambda: self._finish(model))
            self.ranks.barrier()

    def _run_block(self, model: Model, start: int) -> None:
        """Run the block of rounds that begins at round `start`; save the model at its end if a checkpoint is due."""
        while self.done < block_end(start, self.total):  # `total` may become less in any round
            self._run_round(model, self.done)
            end = block_end(start, self.total)
            if self._needs_results(end):
                request = self._record_rounds(model)
                if self.done < self.total:
                    self._follow(request, model, self.done if self.done == end else start)
        if self._is_due(self.done):
            self._save(model, self.done)
            self.replay.saved(self.done, block_end(self.done, self.total))

    def _run_round(self, model: Model, number: int) -> None:
        began = time.perf_counter()
        with self.clock.time("compute"):
            self.boosting.advance(model, number)
        with self.clock.time("validation"):
            measures = self.boosting.measure(model, number)
        self.done = number + 1
        self.heartbeat.beat(self.done)
        self.results.add(measures, time.perf_counter() - began)

    def _needs_results(self, end: int) -> bool:
        """Whether the workers exchange the results of the rounds now; `end` is the end of the block.

        A checkpoint has the results of all rounds before it; early stopping and the replay check need those of each.
        """
        if (
            self.results.are_due
            or self.replay.is_repeating
            or self.job.settings.training.patience is not None
        ):
            return True
        return self.done == end and self._is_due(end)

    def _record_rounds(self, model: Model) -> int:
        """Exchange and record the results of the rounds since the last exchange; returns the request of all workers."""
        with self.clock.time("validation"):
            exchange = self.results.exchange(self.requests.read())
        for result, at in zip(exchange.results, exchange.ended_at, strict=True):
            self._record(result, exchange.round_s, at)
        self.replay.watch(model, self.done, exchange.results[-1], ended=self.done == self.total)
        return exchange.request

    def _record(self, result: Round, seconds: float, at: float) -> None:
        """Record the result of the next round, which took `seconds` and ended at `at`, in seconds since 1970."""
        number = len(self.history) + 1
        row = EpochMetrics(
            epoch=number,
            step=number,
            train_loss=result.train_loss,
            train_score=result.train_score,
            validation_loss=result.validation_loss,
            validation_score=result.validation_score,
            learning_rate=self.boosting.learning_rate,
            images_per_s=self.rows / seconds,
            rows=self.rows,
            checksum=self.checksum,
        )
        self._check_finite(result, number)
        self.history.append(row)
        self._find_end()
        if self.ranks.is_first and (number % self.interval == 0 or number == self.total):
            self.metrics.append(number, number, self._values(row), at)

    def _find_end(self) -> None:
        """Set the number of rounds of the training, as the validation losses so far decide; all ranks agree."""
        training = self.job.settings.training
        if training.patience is None:
            return
        losses = [row.validation_loss for row in self.history]
        end = last_epoch(losses, training.patience, training.total_epochs)
        # The first rank decides for all, by the losses that it records.
        self.total = int(self.ranks.add_up(end if self.ranks.is_first else 0)[0])
        self.metrics = replace(self.metrics, total_steps=self.total)
        self.stopped = early_end(losses, "round") if self.total < training.total_epochs else ""

    def _values(self, row: EpochMetrics) -> dict[str, float]:
        metric = self.boosting.metric
        return {
            "train/loss": row.train_loss,
            f"train/{metric}": row.train_score,
            "train/learning_rate": row.learning_rate,
            "validation/loss": row.validation_loss,
            f"validation/{metric}": row.validation_score,
            "speed/rows_per_s": row.images_per_s,
            "speed/data_wait_share": 0.0,
            "epoch": float(row.epoch),
        }

    def _check_finite(self, result: Round, number: int) -> None:
        """Raise :class:`TrainingError` on every rank if a loss or metric is not a finite number."""
        if not all(map(math.isfinite, vars(result).values())):
            raise TrainingError(
                f"the loss or the metric is not a finite number after round {number}: training diverged. Lower "
                "training.learning_rate, or look for extreme values of the target."
            )

    def _follow(self, request: int, model: Model, boundary: int) -> None:
        """Handle a request to save or to stop; all ranks act on a request after the same round.

        `boundary` is the number of rounds at the newest block boundary. For a request to stop, saves the model of these
        rounds and raises :class:`StopRequestedError`.
        """
        self.save_requested = self.save_requested or request >= SAVE
        if request != STOP:
            return
        if boundary > self.saved_round:
            if self.ranks.is_first:
                # A checkpoint records the number of metric points before it. The rounds since `boundary` are computed
                # again, so their points are removed.
                self.metrics.rewind(boundary)
            del self.history[boundary:]
            self._save(model, boundary)
        self.long_work.on_first(self.checkpoints.wait)
        self.ranks.barrier()
        at = f"training stopped on request at step {self.done} of {self.total}; the same command resumes "
        if boundary == self.done:
            raise StopRequestedError(at + "there")
        raise StopRequestedError(
            f"{at}at step {boundary}: a checkpoint holds whole blocks of rounds, so the rounds since are computed "
            "again"
        )

    def _is_due(self, end: int) -> bool:
        """Whether to save at round `end`, the end of a block; all ranks agree."""
        every = self.job.settings.checkpoint.every_steps
        by_rounds = every is not None and end - self.saved_round >= every
        return self.save_requested or by_rounds or end == self.total or self.replay.needs_checkpoint(end)

    def _save(self, model: Model, rounds: int) -> None:
        """Save the model of the first `rounds` rounds, a block boundary; all ranks wait for the previous write.

        Only the first rank writes. `model` has at least `rounds` rounds.
        """
        import torch

        self.save_requested, self.saved_round = False, rounds
        with self.clock.time("checkpoint"):
            self.long_work.on_first(self.checkpoints.wait)
            if not self.ranks.is_first:
                return
            with self.heartbeat.kept_beating(self.done):  # a large model takes its time
                content = self.boosting.content(model)
                if rounds < self.done:
                    content = self.boosting.first_rounds(content, rounds)
            state = {
                "booster": torch.from_numpy(np.frombuffer(content, np.uint8).copy()),
                "history": [row.model_dump() for row in self.history],
            }
            self.checkpoints.save(Position(rounds, 0, rounds), state, None)
        self.requests.saved()

    def _before_commit(self) -> None:
        """Flush the metric points to disk before the commit, and check that this attempt may still write."""
        self.metrics.sync()
        self.fence.check()

    def _finish(self, model: Model) -> None:
        """Write the model of the selected number of rounds and the record of the training, by one atomic rename.

        With `storage.url`, both are then uploaded. Raises :class:`training.errors.TransientError` if metric points were
        damaged meanwhile.
        """
        self.metrics.check()
        selected = selected_epoch(self.history, best=self.job.settings.training.keeps_best)
        content = self.boosting.first_rounds(self.boosting.content(model), selected.epoch)
        training = FinishedTraining(
            history=self.history,
            selected=selected,
            steps=self.total,
            world_size=self.ranks.world_size,
            device=self.device,
            seconds=self.clock.parts,
            replay=self.replay.outcome(),
            stopped=self.stopped,
        )

        def write(file: Path) -> str:
            file.write_bytes(content)
            self.heartbeat.add_moved(len(content))
            return hashlib.sha256(content).hexdigest()

        write_model(self.job, training, self.model_file, write, self._before_commit)
        self.checkpoints.publish_model(self.job.paths)
        self.heartbeat.finish(self.total)
