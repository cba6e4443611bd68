"""One worker's training by the Trainer of Transformers: Evergreen supplies the batches, a callback counts the steps."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch  # noqa: TID253 - imported by processes that train
import transformers  # noqa: TID253
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments  # noqa: TID253

from training.attempts.job import TrainingJob
from training.checkpoints.checkpoint_log import Position
from training.data.sample_order import stream_key
from training.errors import TrainingError
from training.storage.files import temporary_folder
from training.trainers.generators import seed_generators
from training.trainers.network.feeds import MemoryFeed
from training.trainers.network.progress import Progress
from training.trainers.ranks import Ranks
from training.trainers.transformers.batches import ROWS, TARGETS, WEIGHT, Batches
from training.trainers.transformers.learner import Learner
from training.trainers.transformers.logits import logits
from training.trainers.transformers.own_settings import own_settings

_STEP = 4  # stream of random numbers, see training.data.sample_order


class OwnTrainer(Trainer):
    """The Trainer of Transformers, with Evergreen's batches and the loss of the recipe's problem."""

    loss_is_scaled_for_ga = True  # the loss of a pass is divided by the rows of the whole step

    def __init__(self, fitting: "Fitting", args: TrainingArguments):
        super().__init__(fitting.learner.model, args, callbacks=[fitting])
        self.fitting = fitting
        self.remove_callback(PrinterCallback)

    def get_train_dataloader(self) -> Batches:
        """Called by Transformers when the training starts."""
        return self.fitting.batches

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Build the schedule of the whole training: `num_training_steps` does not count steps before a restart."""
        del num_training_steps
        return super().create_scheduler(self.fitting.progress.total_steps, optimizer)

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> torch.Tensor:
        """The losses of a pass, weighted so that the step minimises the mean loss over its rows on all workers."""
        del return_outputs, num_items_in_batch
        return self.fitting.loss(model, inputs)


class Fitting(TrainerCallback):
    """Runs the Trainer of Transformers, and reports its steps and epochs to Evergreen's :class:`Progress`."""

    def __init__(
        self, job: TrainingJob, ranks: Ranks, learner: Learner, feed: MemoryFeed, progress: Progress
    ):
        self.job, self.ranks, self.learner, self.feed, self.progress = job, ranks, learner, feed, progress
        self.options = own_settings(job.settings)
        self.began = 0.0

    def run(self, position: Position) -> None:
        """Train from `position` to the end. Raises :class:`TrainingError` if the Trainer ends the training early."""
        total = self.progress.total_steps
        if position.step == total:
            return
        self.position = position
        passes = self.options.gradient_accumulation_steps
        self.batches = Batches(self.feed, self.learner, self.progress, position, passes)
        with _quiet(), temporary_folder("transformers") as folder:
            trainer = self.learner.trainer = OwnTrainer(self, self._arguments(str(folder)))
            trainer.train()
        if self.position.step < total:
            raise TrainingError(
                f"the Trainer of Transformers ended the training after {self.position.step} of {total} steps; "
                "training.epochs and training.max_steps say when a training ends"
            )

    def _arguments(self, folder: str) -> TrainingArguments:
        """Arguments of the Trainer for the remaining epochs. Transformers neither saves, logs nor evaluates."""
        options = self.options
        epochs = -(-self.progress.total_steps // self.feed.steps_per_epoch)
        # DDP reorders its buckets after the first backward pass unless it looks for unused parameters. With three or
        # more ranks, the order of the buckets decides the order of sums, so a resumed training would differ.
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs - self.position.epoch,
            per_device_train_batch_size=options.global_batch_size
            // (self.ranks.world_size * options.gradient_accumulation_steps),
            gradient_accumulation_steps=options.gradient_accumulation_steps,
            learning_rate=options.learning_rate,
            lr_scheduler_type=options.lr_scheduler_type,
            warmup_steps=options.warmup_steps,
            optim=options.optim,
            weight_decay=options.weight_decay,
            adam_beta1=options.adam_beta1,
            adam_beta2=options.adam_beta2,
            adam_epsilon=options.adam_epsilon,
            max_grad_norm=options.max_grad_norm,
            bf16=options.precision == "bfloat16",
            fp16=options.precision == "float16",
            use_cpu=self.ranks.device.type == "cpu",
            seed=self.job.settings.seed % 2**32,
            ddp_find_unused_parameters=True,
            save_strategy="no",
            eval_strategy="no",
            logging_strategy="no",
            logging_nan_inf_filter=False,
            report_to="none",
            log_level="warning",
            disable_tqdm=True,
        )
        # In one process, the Trainer would use all GPUs that it sees, by nn.DataParallel, also those of others. No
        # argument limits their number.
        arguments._n_gpu = min(arguments.n_gpu, 1)
        return arguments

    def loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        """The weighted sum of the losses of a pass; adds the unweighted sums to the metric point."""
        targets, rows, weight = (inputs.pop(name) for name in (TARGETS, ROWS, WEIGHT))
        self.learner.set_training()  # the Trainer has put the whole model into training mode
        losses, scores = self.learner.objective.torch_sums(
            logits(model, inputs), targets, self.learner.version, self.options.label_smoothing_factor
        )
        self.epoch.since.add(losses.detach(), scores, rows)
        weighted: torch.Tensor = losses * weight
        return weighted

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore the state of a resumed training, whose remaining epochs the Trainer counts from 0."""
        del args, control, kwargs
        self.learner.load_parts()
        state.global_step, state.max_steps = self.position.step, self.progress.total_steps

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the epoch, or continue an epoch between its steps."""
        del args, state, control, kwargs
        self.epoch = self.progress.begin_epoch(self.position)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Seed the random generators for the step, since checkpoints do not hold their state."""
        del args, state, control, kwargs
        key = stream_key(self.job.settings.seed, _STEP, self.epoch.step, self.ranks.rank)
        seed_generators(key, self.ranks.device.type == "cuda")
        self.learner.rate = self.learner.trainer.optimizer.param_groups[0]["lr"]
        self.began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count the step, after the updates of optimizer and schedule; save a checkpoint, and stop, if due."""
        del args, control, kwargs
        parts = self.progress.clock.parts
        parts["compute"] = parts.get("compute", 0.0) + time.perf_counter() - self.began
        self.progress.finish_step(self.epoch, self.batches.rows)
        state.epoch = self.epoch.step / self.progress.steps_per_epoch

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Validate, and save the end of the epoch."""
        del args, state, control, kwargs
        self.position = self.progress.end_epoch(self.epoch)


@contextmanager
def _quiet() -> Iterator[None]:
    """Restore the verbosity of Transformers' messages after the block, since its Trainer changes it."""
    before = transformers.logging.get_verbosity()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)
