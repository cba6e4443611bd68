"""Model, optimizer and the computation of one step, on one device or data-parallel on many."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch  # noqa: TID253 - this module is itself imported inside functions
import torch.distributed as dist  # noqa: TID253
from torch import nn  # noqa: TID253

from training.checkpoints.parts import whole
from training.data.dataset import Columns
from training.data.sample_order import Rows, stream_key
from training.errors import TrainingError
from training.problems.objectives import objective_named, sums_of
from training.recipe import Recipe
from training.recipe_metrics import RecipeMetrics
from training.records import DatasetVersion
from training.settings.schema import Settings
from training.trainers.generators import seed_generators
from training.trainers.network.checksums import checksum
from training.trainers.network.feeds import Batch
from training.trainers.network.inputs import example_inputs, inputs_of, model_shape
from training.trainers.network.modules import build_module
from training.trainers.network.validation import rows_at_once, sums_over
from training.trainers.own_loop.own_settings import loop_settings
from training.trainers.own_loop.schedule import build_optimizer, learning_rate, set_learning_rate
from training.trainers.ranks import Ranks

_INITIAL, _STEP = 3, 4  # streams of random numbers, see training.data.sample_order
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class CommunicationClock:
    """Exposed communication time: seconds that steps waited for other workers after their own last gradient.

    `last_bucket` is the time (`time.perf_counter`) at which DDP's last bucket of gradients was ready.
    """

    last_bucket: float = 0.0
    exposed_s: float = 0.0


class LoopReplica:
    """The model and the optimizer on one worker, and the computation of a step.

    A subclass may divide the work among the ranks in another way.

    `sharded` says whether each rank holds a part of the state, `same_for_any_workers` whether every number of workers
    gives the same weights, and `channels_last` whether images are channels-last in memory.
    """

    sharded = False
    same_for_any_workers = False
    channels_last = False

    def __init__(
        self,
        recipe: Recipe,
        version: DatasetVersion,
        settings: Settings,
        ranks: Ranks,
        total_steps: int,
    ):
        self.settings, self.options, self.total_steps = settings, loop_settings(settings), total_steps
        self.ranks, self.version, self.objective = ranks, version, objective_named(version.problem)
        self.communication = CommunicationClock()
        self.before_update: Callable[[], None] = lambda: None
        self._forward_keeps_weights: bool | None = None  # measured in the first pass
        seed_generators(stream_key(settings.seed, _INITIAL), ranks.device.type == "cuda")
        self.module = self.build(recipe)
        self.inputs = inputs_of(recipe, version, settings, ranks.device, self.channels_last)
        self.metrics = RecipeMetrics(recipe.name, recipe.metrics, version, ranks.device)
        self.shard()
        self.optimizer = self.build_optimizer()
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=self.options.precision == "float16")
        self.model = self.wrap()
        if self.model is not self.module:
            self._rehearse()

    def build(self, recipe: Recipe) -> nn.Module:
        """A new module of the recipe on the rank's device, in training mode."""
        outputs = self.objective.outputs(self.version)
        return build_module(recipe, model_shape(self.version), outputs).train().to(self.ranks.device)

    def shard(self) -> None:
        """Called before the optimizer is built: a strategy that divides the weights among the ranks does so here."""

    def build_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the module's parameters."""
        return build_optimizer(self.options, self.module.parameters())

    def wrap(self) -> nn.Module:
        """The module that forward passes call: wrapped in DDP if there are several workers."""
        if not self.ranks.distributed:
            return self.module
        from ray.train.torch import prepare_model

        model: Any = prepare_model(self.module, parallel_strategy_kwargs={"gradient_as_bucket_view": True})
        model.register_comm_hook(self.communication, _timed_allreduce)
        return model  # type: ignore[no-any-return]

    def _rehearse(self) -> None:
        """Run one forward and backward pass and discard its gradients.

        After the first backward pass, DDP reorders its buckets, and so the order in which three or more ranks add
        gradients. Without this pass, the first step after a resume would differ in its last bits.
        """
        buffers = [buffer.clone() for buffer in self.module.buffers()]
        rows = 2 * self.options.accumulation_steps
        inputs = example_inputs(self.version, rows).to(self.ranks.device)
        targets = torch.zeros(rows, dtype=torch.int64, device=self.ranks.device)
        self.add_gradients(Batch(inputs, targets, np.arange(rows), rows), 0, 0, 0, 0.0)
        self._check_all_used()
        self.optimizer.zero_grad(set_to_none=True)
        for buffer, value in zip(self.module.buffers(), buffers, strict=True):
            buffer.copy_(value)
        self.communication.exposed_s = 0.0

    def _check_all_used(self) -> None:
        """Raise :class:`TrainingError` if the pass gave a parameter no gradient: DDP would wait for it in each step."""
        unused = [
            name
            for name, parameter in self.module.named_parameters()
            if parameter.requires_grad and parameter.grad is None
        ]
        if unused:
            raise TrainingError(
                f"the model does not use its parameter {unused[0]}{_and_others(unused)}, and several workers exchange "
                "the gradients of all parameters: remove the parameter, set its requires_grad to False in "
                "build_model, or train with scaling.num_workers=1"
            )

    def step(self, batch: Batch, epoch: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one optimizer step; return the sums of losses and of the metric over this worker's rows.

        From the second sum, :meth:`training.problems.objectives.Objective.reduced` computes the metric.

        The loss is the sum over this worker's rows, divided by the step's rows on *all* workers and multiplied by the
        world size, since DDP averages over ranks. So the gradient is that of the mean loss over the global batch,
        also with shares of unequal size and with accumulation.
        """
        set_learning_rate(self.optimizer, self.learning_rate(step))
        weight = self.ranks.world_size / batch.global_rows
        losses, scores = self.add_gradients(batch, epoch, step, self.ranks.rank, weight)
        self.update()
        return losses, scores

    def add_gradients(
        self, batch: Batch, epoch: int, step: int, part: int, weight: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run forward and backward passes over `batch`, part number `part` of the step's rows.

        Adds the gradients of the sum of losses times `weight`; returns that sum, unweighted, and the sum of the metric.
        """
        # Random numbers (such as for dropout) depend on (seed, step, part) alone: checkpoints hold no generators.
        seed_generators(stream_key(self.settings.seed, _STEP, step, part), self.ranks.device.type == "cuda")
        model_inputs = self.inputs.augmented(batch.inputs, batch.rows, epoch)
        before = self._fingerprints() if self._forward_keeps_weights is None else None
        losses = torch.zeros((), dtype=torch.float64, device=self.ranks.device)
        scores: Any = 0
        chunks = list(
            zip(*(self.passes(tensor, batch) for tensor in (model_inputs, batch.targets)), strict=True)
        )
        weights = [None] * len(chunks) if batch.weights is None else self.passes(batch.weights, batch)
        for number, ((inputs, targets), own) in enumerate(zip(chunks, weights, strict=True), start=1):
            with self._sync_only_if(number == len(chunks)):
                with self._autocast():
                    output = self.model(inputs)
                loss, score = sums_of(
                    self.objective, output, targets, self.version, self.options.label_smoothing, own
                )
                self._backward(loss * weight)
            losses += loss.detach()
            scores = scores + score
        if before is not None:
            self._forward_keeps_weights = before == self._fingerprints()
        return losses, scores

    def passes(self, tensor: torch.Tensor, batch: Batch) -> Sequence[torch.Tensor]:
        """`tensor`, with a row for each row of `batch`, divided into the step's forward and backward passes.

        Each pass has at least two rows, which batch normalisation needs; one row is allowed if the passes of a full
        step have one.
        """
        del batch
        return tensor.tensor_split(self.passes_of(len(tensor)))

    def passes_of(self, rows: int) -> int:
        """The number of passes over `rows` rows of a step: fewer in a short last step; see :meth:`passes`."""
        most = self.options.accumulation_steps
        fewest = 2 if self.options.global_batch_size // self.parts >= 2 * most else 1
        return max(1, min(most, rows // fewest))

    @property
    def parts(self) -> int:
        """The number of parts into which a step's rows are divided, each with passes of its own."""
        return self.ranks.world_size

    def validate(
        self, columns: Columns, rows: Rows, progress: Callable[[], None] = lambda: None
    ) -> tuple[float, float]:
        """Mean loss and metric over `rows`, computed by all ranks together; calls `progress` after each batch."""
        self.same_buffers()
        mine = rows[self.ranks.rank :: self.ranks.world_size]
        total_loss, total_score, count = self.ranks.add_up(
            *self.sums_over(columns, mine, progress), len(mine)
        )
        return total_loss / count, self.objective.reduced(total_score, count)

    def sums_over(
        self, columns: Columns, rows: Rows, progress: Callable[[], None]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums (float64) of losses and of the metric over `rows`, without augmentation and gradients."""
        self.module.eval()
        with self.without_gradients(), self._autocast():
            sums = sums_over(
                self._output,
                self.objective,
                self.version,
                self.ranks.device,
                columns,
                rows,
                rows_at_once(self.objective, self.version, self.settings),
                progress,
                self.metrics,
            )
        self.to_training()
        return sums

    def check_weights(self, weights: dict[str, torch.Tensor]) -> None:
        """Called with the weights of the finished model: a trainer may refuse these."""
        del weights

    def to_training(self) -> None:
        """Set the module to training mode."""
        self.module.train()

    def without_gradients(self) -> AbstractContextManager[None]:
        """A context for forward passes of a validation.

        In inference mode, tensors that the model keeps for later passes could not be used in a training step, nor could
        weights that a sharded replica gathers.
        """
        return torch.no_grad()

    def _output(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.module(self.inputs.plain(inputs))
        return output

    def state(self) -> dict[str, Any]:
        """The state that the next step depends on, as references to tensors: later steps change them in place."""
        parts: dict[str, Any] = {"model": self.module, "optimizer": self.optimizer, "scaler": self.scaler}
        return {name: part.state_dict() for name, part in parts.items()}

    def same_weights(self) -> list[torch.Tensor]:
        """See :class:`training.trainers.network.learner.Learner`."""
        return [] if self.sharded else list(self.module.parameters())

    def changed_by_update_alone(self) -> set[int]:
        """Addresses of the tensors in :meth:`state` that only :meth:`update` changes.

        These are the weights and the optimizer's state. The set is empty before the first pass, and if the model
        changed its weights in that pass, as models that clamp or renormalise weights do.
        """
        if not self._forward_keeps_weights:
            return set()
        tensors: list[Any] = list(self.module.parameters())
        for state in self.optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
        return {tensor.data_ptr() for tensor in tensors}

    @property
    def no_second_model(self) -> str:
        """Why the replay check can't build a second model beside this one; empty if it can."""
        return ""

    @property
    def unit(self) -> str:
        """See :class:`training.trainers.network.inputs.Inputs`."""
        return self.inputs.unit

    def learning_rate(self, step: int) -> float:
        """Learning rate of optimizer step `step`."""
        return learning_rate(self.options, step, self.total_steps)

    def logged(self, at_epoch_end: bool) -> dict[str, float]:
        """At the end of an epoch, the metrics of the recipe."""
        return self.metrics.of_validation() if at_epoch_end else {}

    def _fingerprints(self) -> list[tuple[int, int]]:
        """For each weight, torch's version counter and, since writes through `.data` do not count, a checksum."""
        return [(weight._version, checksum([weight])) for weight in self.module.parameters()]

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state that :meth:`state` returned, also that of a sharded training."""
        state = whole(state)
        self.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])

    def _autocast(self) -> AbstractContextManager[None]:
        dtype = _DTYPES[self.options.precision]
        return torch.autocast(self.ranks.device.type, dtype, enabled=dtype is not torch.float32)

    def _sync_only_if(self, last: bool) -> AbstractContextManager[None]:
        waits: bool = last or self.model is self.module
        return nullcontext() if waits else self.model.no_sync()  # type: ignore[operator]

    def _backward(self, loss: torch.Tensor) -> None:
        self.communication.last_bucket = 0.0
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        if self.communication.last_bucket:
            self.communication.exposed_s += time.perf_counter() - self.communication.last_bucket

    def update(self) -> None:
        """Apply the gradients with the optimizer, clipped if `training.clip_norm` is set, and clear them."""
        self.before_update()
        if self.options.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.module.parameters(), self.options.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def same_buffers(self) -> None:
        """Broadcast the first rank's buffers (running statistics), which the checkpoint holds, to all ranks."""
        if self.ranks.distributed:
            for buffer in self.module.buffers():
                dist.broadcast(buffer, src=0)


def _and_others(names: list[str]) -> str:
    return f" and {len(names) - 1} others" if len(names) > 1 else ""


def _timed_allreduce(
    clock: CommunicationClock,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # DDP takes no other annotation
) -> torch.futures.Future[torch.Tensor]:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    clock.last_bucket = time.perf_counter()
    return allreduce_hook(None, bucket)  # type: ignore[arg-type]
