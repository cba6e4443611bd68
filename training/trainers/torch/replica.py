"""Model, optimizer and the computation of one step, on one device or data-parallel on many."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch  # noqa: TID253 - this module is itself imported inside functions
import torch.distributed as dist  # noqa: TID253
from torch import nn  # noqa: TID253

from training.data.dataset import Columns
from training.data.sample_order import Rows, stream_key
from training.errors import SettingError, TrainingError
from training.problems.objectives import objective_named
from training.recipe import BuildModel, Recipe
from training.records import DatasetVersion
from training.settings.schema import Settings
from training.trainers.generators import seed_generators
from training.trainers.ranks import Ranks
from training.trainers.torch.feeds import Batch
from training.trainers.torch.inputs import example_inputs, inputs_of, model_shape
from training.trainers.torch.own_settings import own_settings
from training.trainers.torch.schedule import build_optimizer, learning_rate, set_learning_rate

_INITIAL, _STEP = 3, 4  # streams of random numbers, see training.data.sample_order
_VALIDATION_ROWS = 512
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class CommunicationClock:
    """Exposed communication time: seconds that steps waited for other workers after their own last gradient.

    `last_bucket` is the time (`time.perf_counter`) at which DDP's last bucket of gradients was ready.
    """

    last_bucket: float = 0.0
    exposed_s: float = 0.0


class Replica:
    """One worker's replica of the model, with its optimizer."""

    def __init__(
        self, recipe: Recipe, version: DatasetVersion, settings: Settings, ranks: Ranks, total_steps: int
    ):
        self.settings, self.options, self.total_steps = settings, own_settings(settings), total_steps
        self.ranks, self.version, self.objective = ranks, version, objective_named(version.problem)
        self.communication = CommunicationClock()
        self.before_update: Callable[[], None] = lambda: None
        self._forward_keeps_weights: bool | None = None  # measured in the first pass
        seed_generators(stream_key(settings.seed, _INITIAL), ranks.device.type == "cuda")
        outputs = self.objective.outputs(version)
        self.module = build_module(recipe, model_shape(version), outputs).to(ranks.device)
        if self.options.channels_last:
            self.module = self.module.to(memory_format=torch.channels_last)
        if self.options.compile:
            # One compiled program per input shape. With dynamic shapes, the program, and so the bits of a step, would
            # depend on which shape came first.
            self.module.compile(dynamic=False)
        self.inputs = inputs_of(recipe, version, settings, ranks.device)
        self.optimizer = build_optimizer(self.options, self.module.parameters())
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=self.options.precision == "float16")
        self.model = self.wrap()
        if self.model is not self.module:
            self._rehearse()

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
        self.optimizer.zero_grad(set_to_none=True)
        for buffer, value in zip(self.module.buffers(), buffers, strict=True):
            buffer.copy_(value)
        self.communication.exposed_s = 0.0

    def step(self, batch: Batch, epoch: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one optimizer step; return the sums of losses and of the metric over this worker's rows.

        The sum of the metric is the one from which :meth:`training.problems.objectives.Objective.reduced` computes.

        The loss is the sum over this worker's rows, divided by the step's rows on *all* workers and multiplied by the
        world size, since DDP averages over ranks. So the gradient is that of the mean loss over the global batch,
        also with shares of unequal size and with accumulation.
        """
        set_learning_rate(self.optimizer, learning_rate(self.options, step, self.total_steps))
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
            zip(
                model_inputs.chunk(self.options.accumulation_steps),
                batch.targets.chunk(self.options.accumulation_steps),
                strict=True,
            )
        )
        for number, (inputs, targets) in enumerate(chunks, start=1):
            with self._sync_only_if(number == len(chunks)):
                with self._autocast():
                    output = self.model(inputs)
                loss, score = self.objective.torch_sums(
                    output, targets, self.version, self.options.label_smoothing
                )
                self._backward(loss * weight)
            losses += loss.detach()
            scores = scores + score
        if before is not None:
            self._forward_keeps_weights = before == self._fingerprints()
        return losses, scores

    def validate(
        self, columns: Columns, rows: Rows, progress: Callable[[], None] = lambda: None
    ) -> tuple[float, float]:
        """Mean loss and metric over `rows`, computed by all ranks together; calls `progress` after each batch."""
        self._same_buffers()
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
        losses, scores = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        with torch.inference_mode(), self._autocast():
            for start in range(0, len(rows), _VALIDATION_ROWS):
                part = rows[start : start + _VALIDATION_ROWS]
                targets = torch.from_numpy(columns.targets[part]).to(self.ranks.device)
                inputs = torch.from_numpy(columns.read(part)).to(self.ranks.device)
                output = self.module(self.inputs.plain(inputs))
                loss, score = self.objective.torch_sums(output, targets, self.version)
                losses += loss.double().cpu()
                scores += score.double().cpu()
                progress()
        self.module.train()
        return losses, scores

    def state(self) -> dict[str, Any]:
        """The state that the next step depends on, as references to tensors: later steps change them in place."""
        parts: dict[str, Any] = {"model": self.module, "optimizer": self.optimizer, "scaler": self.scaler}
        return {name: part.state_dict() for name, part in parts.items()}

    def changed_by_update_alone(self) -> set[int]:
        """Addresses of the tensors in :meth:`state` that only :meth:`update` changes.

        These are the weights and the optimizer's state. The set is empty before the first pass, and if the model
        changed its weights in that pass, as models that clamp or renormalise weights do.
        """
        if not self._forward_keeps_weights:
            return set()
        found: list[Any] = list(self.module.parameters())
        for state in self.optimizer.state.values():
            found += [value for value in state.values() if isinstance(value, torch.Tensor)]
        return {tensor.data_ptr() for tensor in found}

    def _fingerprints(self) -> list[tuple[int, float]]:
        """For each weight, torch's version counter and, since writes through `.data` do not count, the norm."""
        return [(one._version, float(one.detach().norm())) for one in self.module.parameters()]

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state that :meth:`state` returned."""
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

    def _same_buffers(self) -> None:
        """Broadcast the first rank's buffers (running statistics), which the checkpoint holds, to all ranks."""
        if self.ranks.distributed:
            for buffer in self.module.buffers():
                dist.broadcast(buffer, src=0)


def build_module(recipe: Recipe, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Build a new model of the recipe, and check that it gives `outputs` values for each row of inputs of `shape`.

    Raises :class:`training.errors.TrainingError` if the model does not fit the data, or reads a file that is not kept
    with the run.
    """
    try:
        module = _builder(recipe)(shape, outputs)
    except FileNotFoundError as error:
        raise TrainingError(
            f"recipe {recipe.name}: build_model reads {error.filename}, which is not kept with the run. Name it in "
            "Recipe(files=(...)), relative to the recipe, and open it relative to __file__."
        ) from error
    module.eval()
    try:
        with torch.inference_mode():
            output = tuple(module(torch.zeros((2, *shape))).shape)
    except (RuntimeError, ValueError) as error:
        raise TrainingError(f"recipe {recipe.name}: its model refuses {_of_inputs(shape, error)}") from error
    if output != (2, outputs):
        raise TrainingError(f"recipe {recipe.name}: {_of_outputs(shape, output, outputs)}")
    return module.train()


def _builder(recipe: Recipe) -> BuildModel:
    """The recipe's `build_model`. Raises :class:`SettingError` if the recipe is for another trainer."""
    if recipe.build_model is None:
        raise SettingError(
            f"recipe {recipe.name}: its trainer builds no PyTorch module; use trainer=Torch(build_model)"
        )
    return recipe.build_model


def _of_inputs(shape: tuple[int, ...], error: Exception) -> str:
    if len(shape) == 1:
        return (
            f"rows of {shape[0]} features: {error}. Build the model from the shape that build_model is given: "
            "(features,), with one feature for each category of a category column."
        )
    return (
        f"images of {shape} (channels, height, width): {error}. "
        "Build the model from the shape that build_model is given, or set data.image_size / data.channels."
    )


def _of_outputs(shape: tuple[int, ...], output: tuple[int, ...], outputs: int) -> str:
    if len(shape) == 1:
        return (
            f"two rows gave an output of shape {output}; {outputs} outputs need (2, {outputs}). Size the last layer "
            "by the `outputs` that build_model is given."
        )
    needs = f"{outputs} classes need" if outputs > 1 else "a number needs"
    return (
        f"two images gave an output of shape {output}; {needs} (2, {outputs}). Size the last layer by the `classes` "
        "or `outputs` that build_model is given."
    )


def _timed_allreduce(
    clock: CommunicationClock,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # DDP takes no other annotation
) -> torch.futures.Future[torch.Tensor]:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    clock.last_bucket = time.perf_counter()
    return allreduce_hook(None, bucket)  # type: ignore[arg-type]
