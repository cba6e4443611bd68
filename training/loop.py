"""The training loop: runs in every worker, serves one device and many, and goes on where a checkpoint left off."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from training.checkpoint import CheckpointLog, Position, save_weights, weights_digest
from training.dataset import Columns
from training.errors import TrainingError
from training.feeds import Feed
from training.files import atomic_folder
from training.job import TrainingJob
from training.learner import Learner
from training.metrics import MetricsFile
from training.order import Rows
from training.ranks import Ranks
from training.records import EpochMetrics, Goodput, TrainedModel
from training.schedule import learning_rate

log = logging.getLogger("evergreen.loop")

_POINTS_PER_EPOCH, _MOST_STEPS_A_POINT = 10, 50


@dataclass
class Clock:
    """Seconds by part of the loop."""

    parts: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add the block's seconds to `part`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.parts[part] = self.parts.get(part, 0.0) + time.perf_counter() - began


@dataclass
class Sums:
    """Loss, hits and rows added up over all ranks."""

    loss: float = 0.0
    hits: float = 0.0
    rows: float = 0.0

    def add(self, other: "Sums") -> None:
        """Add `other` in place."""
        self.loss, self.hits, self.rows = (
            self.loss + other.loss,
            self.hits + other.hits,
            self.rows + other.rows,
        )


@dataclass
class Loop:
    """One worker's training, from the newest checkpoint to the finished model."""

    job: TrainingJob
    ranks: Ranks
    columns: Columns
    feed: Feed
    validation_rows: Rows
    learner: Learner
    total_steps: int
    clock: Clock = field(default_factory=Clock)
    history: list[EpochMetrics] = field(default_factory=list)
    epoch_sums: Sums = field(default_factory=Sums)
    saved_at: float = field(default_factory=time.perf_counter)
    saved_step: int = 0

    def __post_init__(self) -> None:
        self.checkpoints = CheckpointLog(
            self.job.paths.checkpoints, self.job.settings.checkpoint, self.job.run_key
        )
        self.metrics = MetricsFile(self.job.paths.metrics, self.total_steps)
        self.interval = self.job.settings.tracking.log_every_steps or max(
            1, min(_MOST_STEPS_A_POINT, self.feed.steps_per_epoch // _POINTS_PER_EPOCH)
        )

    def run(self) -> None:
        """Train to the end; the first rank leaves the finished model in `paths.model`."""
        position = self.resume()
        while position.step < self.total_steps:
            position = self.run_epoch(position)
        if self.ranks.is_first:
            self.checkpoints.wait()
            self.finish()
        self.ranks.barrier()

    def resume(self) -> Position:
        """Load the newest checkpoint that verifies, if there is one."""
        found = self.checkpoints.load_newest()
        position = found[0] if found else Position(0, 0, 0)
        # Ranks read the same folder, but a damaged file may be seen by one alone: agree before anyone steps.
        total, largest = self.ranks.add_up(position.step, position.step**2)
        if total**2 != largest * self.ranks.world_size:
            raise TrainingError(
                "workers found different checkpoints; is the run's folder on storage that all of them share?"
            )
        if found:
            self.learner.load(found[1]["learner"])
            self.history = [EpochMetrics.model_validate(row) for row in found[1]["history"]]
            self.epoch_sums = Sums(*found[1]["epoch_sums"])
            self.saved_step = position.step
        if self.ranks.is_first:
            self.metrics.rewind(position.step)
            log.info("training starts at step %d of %d", position.step, self.total_steps)
        return position

    def run_epoch(self, position: Position) -> Position:
        """All steps of an epoch from `position` on, then its validation and checkpoint."""
        began = time.perf_counter()
        step, since = position.step, self._interval()
        batches = self.feed.batches(position.epoch, position.step_in_epoch)
        for in_epoch in range(position.step_in_epoch, self.feed.steps_per_epoch):
            with self.clock.time("data wait"):
                batch = next(batches)
            before = self.learner.communication.exposed_s
            with self.clock.time("compute"):
                losses, hits = self.learner.step(batch, position.epoch, step)
                since.add(losses, hits, len(batch.labels))
            self._book_communication(before)
            step += 1
            last = in_epoch + 1 == self.feed.steps_per_epoch or step == self.total_steps
            if last or (in_epoch + 1) % self.interval == 0:
                self._report(since, step, position.epoch)
                since = self._interval()
                if not last and self.feed.exact:
                    self._checkpoint_if_due(Position(position.epoch, in_epoch + 1, step))
            if last:
                break
        self._end_epoch(position.epoch, step, time.perf_counter() - began)
        return Position(position.epoch + 1, 0, step)

    def _interval(self) -> "_Interval":
        return _Interval(waited_before=self.clock.parts.get("data wait", 0.0))

    def _book_communication(self, before: float) -> None:
        exposed = self.learner.communication.exposed_s - before
        self.clock.parts["communication"] = self.clock.parts.get("communication", 0.0) + exposed
        self.clock.parts["compute"] -= exposed

    def _report(self, since: "_Interval", step: int, epoch: int) -> None:
        """Reduce the interval's sums over all ranks and write them as one metric point."""
        with self.clock.time("communication"):
            sums = Sums(*self.ranks.add_up(since.losses, since.hits, since.rows))
        self.epoch_sums.add(sums)
        seconds = time.perf_counter() - since.began
        waited = self.clock.parts.get("data wait", 0.0) - since.waited_before
        values = {
            "train/loss": sums.loss / sums.rows,
            "train/accuracy": sums.hits / sums.rows,
            "train/learning_rate": learning_rate(self.job.settings.training, step - 1, self.total_steps),
            "speed/images_per_s": sums.rows / seconds,
            "speed/data_wait_share": waited / seconds,
        }
        self._write(step, epoch, values)

    def _write(self, step: int, epoch: int, values: dict[str, float]) -> None:
        """Write a point on the first rank; every rank stops when a value is not finite, before the next step."""
        if self.ranks.is_first:
            self.metrics.append(step, epoch + 1, values)
        elif not all(map(math.isfinite, values.values())):
            raise TrainingError(f"training diverged at step {step}")

    def _end_epoch(self, epoch: int, step: int, seconds: float) -> None:
        with self.clock.time("validation"):
            loss, accuracy = self.learner.validate(self.columns, self.validation_rows)
        sums, self.epoch_sums = self.epoch_sums, Sums()
        row = EpochMetrics(
            epoch=epoch + 1,
            step=step,
            train_loss=sums.loss / sums.rows,
            train_accuracy=sums.hits / sums.rows,
            validation_loss=loss,
            validation_accuracy=accuracy,
            learning_rate=learning_rate(self.job.settings.training, step - 1, self.total_steps),
            images_per_s=sums.rows / seconds,
        )
        self._write(
            step, epoch, {"validation/loss": loss, "validation/accuracy": accuracy, "epoch": float(epoch + 1)}
        )
        self.history.append(row)
        if self.ranks.is_first:
            self._save(Position(epoch + 1, 0, step), score=loss)

    def _checkpoint_if_due(self, position: Position) -> None:
        settings = self.job.settings.checkpoint
        due = time.perf_counter() - self.saved_at >= settings.every_s
        due |= settings.every_steps is not None and position.step - self.saved_step >= settings.every_steps
        if due and self.ranks.is_first and not self.checkpoints.busy:
            self._save(position, score=None)

    def _save(self, position: Position, score: float | None) -> None:
        with self.clock.time("checkpoint"):
            state = {
                "learner": self.learner.state(),
                "history": [row.model_dump() for row in self.history],
                "epoch_sums": [self.epoch_sums.loss, self.epoch_sums.hits, self.epoch_sums.rows],
            }
            self.checkpoints.save(position, state, score)
        self.saved_at, self.saved_step = time.perf_counter(), position.step

    def finish(self) -> None:
        """Write the selected epoch's weights and the record of the training, together."""
        chosen = self.history[-1]
        if self.job.settings.training.select == "best":
            chosen = min(self.history, key=lambda row: (row.validation_loss, row.epoch))
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
            )
            (folder / "trained.json").write_text(trained.model_dump_json(indent=1))


@dataclass
class _Interval:
    """This worker's sums since the last metric point; tensors stay on the device until then."""

    losses: Any = 0.0
    hits: Any = 0
    rows: int = 0
    waited_before: float = 0.0
    began: float = field(default_factory=time.perf_counter)

    def add(self, losses: Any, hits: Any, rows: int) -> None:
        self.losses, self.hits, self.rows = self.losses + losses, self.hits + hits, self.rows + rows
