"""One worker's training by Lightning's Trainer: Evergreen supplies the batches, and a callback counts the steps."""

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch  # noqa: TID253 - imported by processes that train
from lightning.pytorch import LightningDataModule, LightningModule, Trainer  # noqa: TID253
from lightning.pytorch.callbacks import (  # noqa: TID253
    BaseFinetuning,
    Callback,
    EarlyStopping,
    LearningRateFinder,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.utilities.exceptions import SIGTERMException  # noqa: TID253
from lightning_utilities.core.apply_func import apply_to_collection

from training.attempts.job import TrainingJob
from training.checkpoints.checkpoint_log import Position
from training.data.sample_order import stream_key
from training.errors import StopRequestedError, TrainingError
from training.trainers.generators import seed_generators
from training.trainers.lightning.batches import Batches, Pair, ValidationBatches
from training.trainers.lightning.datamodule import data_arguments
from training.trainers.lightning.learner import Learner
from training.trainers.lightning.own_settings import own_settings
from training.trainers.network.feeds import Batch, MemoryFeed
from training.trainers.network.progress import Progress
from training.trainers.network.validation import evaluating
from training.trainers.ranks import Ranks

_STEP, _TRANSFER = 4, 7  # streams of random numbers, see training.data.sample_order
_PRECISIONS = {"float32": "32-true", "bfloat16": "bf16-mixed", "float16": "16-mixed"}


class Fitting(Callback):
    """Runs Lightning's Trainer, and reports its steps and epochs to Evergreen's :class:`Progress`."""

    def __init__(
        self,
        job: TrainingJob,
        ranks: Ranks,
        learner: Learner,
        feed: MemoryFeed,
        progress: Progress,
        datamodule: LightningDataModule | None = None,
    ):
        self.job, self.ranks, self.learner, self.feed, self.progress = job, ranks, learner, feed, progress
        self.datamodule = datamodule
        self.epoch_is_over, self.uncounted_rows = False, 0
        self.output: torch.Tensor | None = None
        self.began, self.optimizer_steps = 0.0, 0
        self.names_before_validation: set[str] = set()
        self.validation_names: set[str] = set()
        self.enters_epoch = (
            False  # whether the hooks of the epoch's start must be repeated, of an epoch that is resumed
        )

    def run(self, position: Position) -> None:
        """Train from `position` to the end. Raises :class:`TrainingError` if the module ends the training early."""
        total = self.progress.total_steps
        if position.step == total:
            return
        self.position, self.epoch = position, self.progress.begin_epoch(position)
        self.batches = Batches(self.feed, self.learner, self.progress, position, self._finish_step)
        module = self.learner.module
        self.sigterm_handler = signal.getsignal(signal.SIGTERM)
        with _quiet(), self._capturing_outputs(module):
            trainer = self.learner.trainer = self._new_trainer()
            try:
                trainer.fit(
                    module,
                    ckpt_path="checkpoint" if position.step else None,
                    **data_arguments(self.datamodule, self.batches, self._validation_batches(module)),
                )
            except SIGTERMException as error:
                raise StopRequestedError(
                    f"training stopped on request at step {self.epoch.step} of {total}; the same command resumes at "
                    "its newest checkpoint"
                ) from error
        if not self.progress.history or self.progress.history[-1].step < total:
            raise TrainingError(
                f"the LightningModule ended the training after {self.epoch.step} of {total} steps. Leave out what sets "
                "trainer.should_stop; training.epochs and training.max_steps say when a training ends."
            )

    def _new_trainer(self) -> Trainer:
        options = own_settings(self.job.settings)
        where: dict[str, Any] = {"devices": 1, "plugins": [self.learner.exchange]}
        if self.ranks.distributed:
            from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, prepare_trainer

            # DDP reorders its buckets after the first backward pass unless it looks for unused parameters. With three
            # or more ranks, the order of the buckets decides the order of sums, so a resumed training would differ.
            # Looking for them also permits losses that use a part of the module, as of several optimizers.
            strategy = RayDDPStrategy(find_unused_parameters=True)
            where = {
                "devices": "auto",
                "strategy": strategy,
                "plugins": [RayLightningEnvironment(), self.learner.exchange],
            }
        trainer = _StepsTrainer(
            self.progress.total_steps,
            accelerator="gpu" if self.ranks.device.type == "cuda" else "cpu",
            precision=_PRECISIONS[options.precision],
            max_epochs=options.epochs,
            gradient_clip_val=options.clip_norm,
            callbacks=[self],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            default_root_dir=self.job.paths.root,
            **where,
        )
        return prepare_trainer(trainer) if self.ranks.distributed else trainer

    def _validation_batches(self, module: LightningModule) -> ValidationBatches | None:
        """None for a module without `validation_step`, and with fewer validation rows than ranks."""
        has_step = type(module).validation_step is not LightningModule.validation_step
        enough = len(self.progress.validation_rows) >= self.ranks.world_size
        return ValidationBatches(self.learner, self.progress) if has_step and enough else None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse callbacks of the module whose effect checkpoints or the choice of the best epoch would not have."""
        del pl_module, stage
        for callback in trainer.callbacks:
            if isinstance(callback, EarlyStopping | StochasticWeightAveraging | WeightAveraging):
                raise TrainingError(
                    f"configure_callbacks returns {type(callback).__name__}, which trainer lightning does not support: "
                    "each epoch is trained, and training.select=best keeps the weights of the best"
                )
            if isinstance(callback, LearningRateFinder):
                raise TrainingError(
                    f"configure_callbacks returns {type(callback).__name__}, which trainer lightning does not support: "
                    "it would train before the first step, and find other values in each training. Search once, by "
                    "`evergreen tune`, and set what was found"
                )
            if isinstance(callback, BaseFinetuning):
                raise TrainingError(
                    f"configure_callbacks returns {type(callback).__name__}, which trainer lightning does not support: "
                    "workers exchange the gradients of the parameters that are trained from the start, and a resumed "
                    "training would freeze the others again. Set requires_grad in __init__, or use a lower learning "
                    "rate for a part of the module"
                )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the handler of SIGTERM: Lightning's would end the training after the present step, without a save."""
        del trainer, pl_module
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self.sigterm_handler)
        self.enters_epoch = bool(self.position.step_in_epoch)

    def _repeat_epoch_start(self) -> None:
        """Repeat the hooks of the start of an epoch that is resumed between its steps.

        The hooks may set what no checkpoint has, such as the parts of the module in evaluation mode. The state that
        checkpoints have is that after these hooks, so their changes to this state are undone. Called before the first
        batch is fetched, so that all hooks of the training's start have run.
        """
        trainer, module = self.learner.trainer, self.learner.module
        self.learner.begin_training()
        others = [callback for callback in trainer.callbacks if callback is not self]
        with _unchanged([module, *trainer.optimizers, *_schedulers(trainer), *others]):
            for callback in others:
                callback.on_train_epoch_start(trainer, module)
            module.on_train_epoch_start()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the previous epoch here: in Lightning's hook for that end, some learning rates are not updated yet."""
        del trainer, pl_module
        if self.learner.trained is None:
            self.learner.begin_training()
        if self._close_epoch():
            self.epoch = self.progress.begin_epoch(self.position)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the names of metrics before the module's validation."""
        del pl_module
        self.names_before_validation = set(trainer.callback_metrics)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the names of metrics that the module's validation logged."""
        del pl_module
        self.validation_names |= set(trainer.callback_metrics) - self.names_before_validation

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give schedulers that monitor a metric the same value on all workers: the mean.

        Raises :class:`TrainingError` for an epoch that ended early, or a scheduler that would not resume exactly.
        """
        del pl_module
        if not self.epoch_is_over:
            raise TrainingError(
                f"the LightningModule left epoch {self.epoch.number} after {self.epoch.in_epoch} of "
                f"{self.progress.steps_per_epoch} steps; on_train_batch_start must not return -1, and nothing may set "
                "trainer.should_stop"
            )
        for scheduler in trainer.lr_scheduler_configs:
            if scheduler.reduce_on_plateau and scheduler.monitor not in self.validation_names:
                raise TrainingError(
                    f"a learning rate scheduler monitors {scheduler.monitor!r}, which validation_step does not log. "
                    "After a restart, Lightning averages a metric of training over the rest of the epoch, so the "
                    "learning rate would differ: log the metric in validation_step."
                )
            if scheduler.reduce_on_plateau and scheduler.interval != "epoch":
                raise TrainingError(
                    f"ReduceLROnPlateau with interval={scheduler.interval!r}: the workers have a common value of "
                    f"{scheduler.monitor!r} at the ends of epochs only; use interval='epoch'"
                )
            if scheduler.reduce_on_plateau:
                self._share(trainer, str(scheduler.monitor))

    def _share(self, trainer: Trainer, name: str) -> None:
        """Replace a metric by its mean over the ranks, unless it is the same on all, as with `sync_dist=True`."""
        mine = trainer.callback_metrics[name].detach().double().reshape(1)
        values = torch.cat(self.ranks.gather(mine.to(self.ranks.device)))
        if bool((values != values[0]).any()):
            trainer.callback_metrics[name] = values.mean()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the last epoch."""
        del trainer, pl_module
        self._close_epoch()

    def _close_epoch(self) -> bool:
        if not self.epoch_is_over:
            return False
        self.learner.at_epoch_start = True
        self.position = self.progress.end_epoch(self.epoch)
        self.learner.at_epoch_start = self.epoch_is_over = False
        return True

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Pair, batch_idx: int
    ) -> None:
        """Seed the random generators for the step, since checkpoints do not hold their state."""
        del pl_module, batch, batch_idx
        # At the end of a resumed epoch, Lightning would not update ReduceLROnPlateau, because its own checkpoints lack
        # the monitored metric. Here the metric exists: validation runs at the end of the resumed epoch.
        trainer.fit_loop.restarting = False
        key = stream_key(self.job.settings.seed, _STEP, self.epoch.step, self.ranks.rank)
        seed_generators(key, self.ranks.device.type == "cuda")
        if trainer.optimizers:
            self.learner.rate = trainer.optimizers[0].param_groups[0]["lr"]
        self.output, self.began, self.optimizer_steps = None, time.perf_counter(), trainer.global_step

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        """Weight the gradient by this rank's number of rows: DDP averages the gradients of the ranks' mean losses."""
        del trainer, pl_module
        batch = self.batches.fetched[0]
        weight = len(batch.rows) * self.ranks.world_size / batch.global_rows
        if weight != 1:
            loss.register_hook(lambda gradient: gradient * weight)  # type: ignore[no-untyped-call]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Pair, batch_idx: int
    ) -> None:
        """Add up the step's loss and metric. :meth:`_finish_step` counts the step once Lightning has completed it.

        Raises :class:`TrainingError` if no optimizer took a step, as with accumulated gradients.
        """
        del pl_module, outputs, batch_idx
        if trainer.global_step == self.optimizer_steps:
            raise TrainingError(
                f"training_step made no optimizer step at step {self.epoch.step}. Checkpoints do not hold gradients, "
                "so gradients can't be accumulated over several steps."
            )
        fetched, clock, epoch = self.batches.fetched.popleft(), self.progress.clock, self.epoch
        losses, scores = self._sums(batch, fetched)
        epoch.since.add(losses, scores, fetched.rows)
        clock.parts["compute"] = clock.parts.get("compute", 0.0) + time.perf_counter() - self.began
        at_end = epoch.step + 1 == self.progress.total_steps
        last = at_end or epoch.in_epoch + 1 == self.progress.steps_per_epoch
        if last or (epoch.in_epoch + 1) % self.progress.interval == 0:
            self.learner.note_logged()
        self.uncounted_rows = fetched.global_rows
        if last:  # no checkpoint follows, and the validation comes before the next fetch
            self._finish_step()
        trainer.should_stop = trainer.should_stop or at_end

    def _finish_step(self) -> None:
        """Count the step that Lightning has completed; save a checkpoint and stop the training if due."""
        if self.enters_epoch:
            self.enters_epoch = False
            self._repeat_epoch_start()
        rows, self.uncounted_rows = self.uncounted_rows, 0
        if rows:
            self.epoch_is_over = self.progress.finish_step(self.epoch, rows)
        key = stream_key(self.job.settings.seed, _TRANSFER, self.epoch.step, self.ranks.rank)
        seed_generators(key, self.ranks.device.type == "cuda")

    def _sums(self, batch: Any, fetched: Batch) -> Pair:
        """Sums of the problem's loss and metric, from the module's output in `training_step`.

        If `training_step` does not call `self`, a further forward pass in evaluation mode computes the output.
        """

        def from_output(output: torch.Tensor) -> Pair:
            return self.learner.objective.torch_sums(output.detach(), fetched.targets, self.learner.version)

        if self.output is not None:
            return from_output(self.output)
        with evaluating(self.learner.module), self.learner.trainer.precision_plugin.forward_context():
            return from_output(self.learner.module(batch[0]))

    @contextmanager
    def _capturing_outputs(self, module: LightningModule) -> Iterator[None]:
        """Keep the output of `forward` in `training_step`, which may call `self(inputs)` or `self.forward(inputs)`."""
        forward = module.forward

        def capturing(*inputs: Any, **options: Any) -> Any:
            output = forward(*inputs, **options)
            if module.training and self.batches.fetched and self._is_for_batch(output):
                self.output = output.detach()
            return output

        module.forward = capturing
        try:
            yield
        finally:
            del module.forward  # the attribute of the instance, which hides the method of the class

    def _is_for_batch(self, output: Any) -> bool:
        outputs = self.learner.objective.outputs(self.learner.version)
        return isinstance(output, torch.Tensor) and output.shape == (
            len(self.batches.fetched[0].rows),
            outputs,
        )


class _StepsTrainer(Trainer):
    """Lightning's Trainer, which knows that `training.max_steps` may end the training inside an epoch.

    Lightning's own `max_steps` counts optimizer steps: a module with two optimizers would end too early.
    """

    def __init__(self, steps: int, **options: Any):
        super().__init__(**options)
        self._steps = steps

    @property
    def estimated_stepping_batches(self) -> int:
        """Steps of the whole training, for the schedule of a learning rate."""
        return self._steps


def _schedulers(trainer: Trainer) -> list[Any]:
    return [config.scheduler for config in trainer.lr_scheduler_configs]


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)


@contextmanager
def _unchanged(parts: list[Any]) -> Iterator[None]:
    """After the block, the parts have the states (`state_dict`) that they had before."""
    # On the CPU: a second copy of model and optimizer may not fit a GPU.
    states = [apply_to_collection(part.state_dict(), torch.Tensor, _copied) for part in parts]
    yield
    for part, state in zip(parts, states, strict=True):
        part.load_state_dict(state)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Lightning's messages below warnings, such as those on the hardware."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
