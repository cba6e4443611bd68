"""The object that a recipe's training loop gets: it supplies the model and the batches, and counts steps and epochs."""

import time
from collections.abc import Callable, Iterator, Set
from typing import Any

import torch  # noqa: TID253 - imported by processes that train
from torch import nn  # noqa: TID253
from torch.nn.parallel import DistributedDataParallel  # noqa: TID253

from training.checkpoints.checkpoint_log import Position
from training.data.dataset import Columns
from training.data.sample_order import Rows, stream_key
from training.errors import TrainingError
from training.problems.objectives import objective_named
from training.recipe import Recipe
from training.recipe_metrics import RecipeMetrics
from training.records import DatasetVersion
from training.settings.schema import Settings
from training.trainers.entry import Entry
from training.trainers.generators import seed_generators
from training.trainers.network.accelerate_state import check_no_plugin
from training.trainers.network.accumulators import Interval
from training.trainers.network.feeds import Batch, MemoryFeed
from training.trainers.network.inputs import inputs_of, model_shape
from training.trainers.network.logged_values import mean_of_ranks, metric_name
from training.trainers.network.modules import build_module, check_same_trained, set_trained, trained_weights
from training.trainers.network.plain_state import plain_state
from training.trainers.network.progress import Epoch, Progress
from training.trainers.network.validation import evaluating, mean_over, rows_at_once
from training.trainers.ranks import Ranks

_INITIAL, _STEP = 3, 4  # streams of random numbers, see training.data.sample_order
_REMEDY = "pass register() objects whose state_dict() holds nothing else."


class LoopState:
    """The model and the other stateful objects of a loop; see :class:`training.trainers.network.learner.Learner`."""

    def __init__(self, recipe: Recipe, version: DatasetVersion, settings: Settings, ranks: Ranks):
        self.version, self.ranks = version, ranks
        self.inputs = inputs_of(recipe, version, settings, ranks.device)
        self.batch_rows = rows_at_once(objective_named(version.problem), version, settings)
        self.registered: dict[str, Any] = {}
        self.trained = frozenset[str]()  # names of the trained weights when register() was called
        self.metrics: dict[str, float | torch.Tensor] = {}
        self.rate = 0.0  # learning rate of the newest step
        self.own_metrics = RecipeMetrics(recipe.name, recipe.metrics, version, ranks.device)

    @property
    def unit(self) -> str:
        """See :class:`training.trainers.network.inputs.Inputs`."""
        return self.inputs.unit

    @property
    def model(self) -> nn.Module:
        """The recipe's module, without the wrappers that exchange gradients and compile."""
        return _unwrapped(self.registered["model"])[-1]

    def targets(self, targets: torch.Tensor) -> torch.Tensor:
        """See :meth:`training.problems.objectives.Objective.torch_targets`."""
        return objective_named(self.version.problem).torch_targets(targets, self.version)

    def state(self) -> dict[str, Any]:
        """State of the model and of the other objects.

        Raises :class:`TrainingError` as :func:`plain_state` does, and, with several workers, for weights that were
        frozen or unfrozen.
        """
        if self.ranks.distributed:
            check_same_trained(self.model, self.trained)
        others = {name: each.state_dict() for name, each in self.registered.items() if name != "model"}
        scalers = {name: scaler.state_dict() for name, scaler in self._scalers().items()}
        trained = sorted(trained_weights(self.model))
        kept = {"model": self.model.state_dict(), "others": others, "scalers": scalers, "trained": trained}
        return {name: plain_state(each, f"the state of {name}", _REMEDY) for name, each in kept.items()}

    def load(self, state: dict[str, Any]) -> None:
        """Restore all objects. Raises :class:`TrainingError` if the checkpoint has objects of other names."""
        others, scalers = state["others"], self._scalers()
        if set(others) != set(self.registered) - {"model"}:
            raise TrainingError(
                f"register() got {', '.join(sorted(self.registered))}, and the checkpoint has the state of "
                f"{', '.join(sorted(others))} and of the model; pass the same names at each start"
            )
        self.model.load_state_dict(state["model"])
        set_trained(self.model, state["trained"])
        for name, each in others.items():
            self.registered[name].load_state_dict(each)
        for name, each in state["scalers"].items():
            scalers[name].load_state_dict(each)

    def _scalers(self) -> dict[str, Any]:
        """Loss scalers of float16, which Accelerate keeps in its optimizers and leaves out of their state."""
        scalers = {
            name: getattr(each, "scaler", None) for name, each in self.registered.items() if name != "model"
        }
        return {name: scaler for name, scaler in scalers.items() if scaler is not None}

    def same_weights(self) -> list[torch.Tensor]:
        """See :class:`training.trainers.network.learner.Learner`."""
        modules = [_unwrapped(each)[-1] for each in self.registered.values() if isinstance(each, nn.Module)]
        return [weight for module in modules for weight in module.parameters()]

    def changed_by_update_alone(self) -> Set[int]:
        """Empty: the loop may change any tensor at any time."""
        return frozenset()

    def learning_rate(self, step: int) -> float:
        """Learning rate in step `step`, the newest step: that of the first parameter group of `optimizer`."""
        del step
        return self.rate

    def logged(self, at_epoch_end: bool) -> dict[str, float]:
        """Means over the ranks of the metrics of the newest step; at ends of epochs, the metrics of the recipe."""
        if at_epoch_end:
            return self.own_metrics.of_validation()
        return mean_of_ranks({name: float(value) for name, value in self.metrics.items()}, self.ranks)

    def validate(self, columns: Columns, rows: Rows, progress: Callable[[], None]) -> tuple[float, float]:
        """Mean loss and metric over `rows`, computed by all ranks together; calls `progress` after each batch."""

        def forward(inputs: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.model(self.inputs.plain(inputs))
            return output

        with evaluating(self.model):
            return mean_over(
                self.model,
                forward,
                self.version,
                self.ranks,
                columns,
                rows,
                self.batch_rows,
                progress,
                self.own_metrics,
            )


def _unwrapped(model: nn.Module) -> list[nn.Module]:
    """`model` and what it wraps, from outside to inside: Accelerate may compile a model before or after wrapping it."""
    modules = [model]
    while True:
        inner = modules[-1].module if isinstance(modules[-1], DistributedDataParallel) else modules[-1]
        inner = getattr(inner, "_orig_mod", inner)
        if inner is modules[-1]:
            return modules
        modules.append(inner)


class TrainingLoop:
    """The argument of a recipe's `train(loop)`.

    A loop builds its model, passes all objects with state to `register`, and then trains::

        def train(loop):
            accelerator = Accelerator()
            model = loop.build_model()
            optimizer = torch.optim.AdamW(model.parameters())
            model, optimizer = accelerator.prepare(model, optimizer)
            loop.register(model=model, optimizer=optimizer)
            for epoch in loop.epochs():
                for inputs, targets in loop.batches():
                    outputs = model(inputs)
                    loss = torch.nn.functional.cross_entropy(outputs, targets)
                    accelerator.backward(loss * loop.loss_weight)
                    optimizer.step()
                    optimizer.zero_grad()
                    loop.finish_step(outputs)

    Attributes: `settings` are the settings of the run, `total_steps` is the number of steps of the training, `device`
    is this worker's device, `rank` its number from 0, and `world_size` the number of workers. Checkpoints are saved
    between two steps, and at the ends of epochs after the code that follows the loop over batches.
    """

    def __init__(
        self,
        entry: Entry,
        recipe: Recipe,
        feed: MemoryFeed,
        state: LoopState,
        progress: Progress,
        is_first: bool = True,
    ):
        self._entry, self._recipe, self._feed, self._state, self._progress = (
            entry,
            recipe,
            feed,
            state,
            progress,
        )
        self._objective = objective_named(entry.job.dataset.problem)
        self._is_first = is_first  # in this process; the loop of a replay check is not
        self._names: set[str] = set()  # of the tensors of the recipe's model
        self._position: Position | None = None
        self._epoch: Epoch | None = None
        self._batch: Batch | None = None  # of the step that has not been counted
        self.settings, self.device = entry.job.settings, entry.ranks.device
        self.total_steps = progress.total_steps
        self.rank, self.world_size = entry.ranks.rank, entry.ranks.world_size

    def build_model(self) -> nn.Module:
        """The recipe's model on this worker's device, with initial weights that are the same on all workers."""
        job = self._entry.job
        seed_generators(stream_key(job.settings.seed, _INITIAL), self.device.type == "cuda")
        outputs = self._objective.outputs(job.dataset)
        module = build_module(self._recipe, model_shape(job.dataset), outputs).train().to(self.device)
        self._names = set(module.state_dict())
        return module

    def register(self, model: nn.Module, **others: Any) -> None:
        """Name all objects with state, such as model, optimizer and scheduler; restores the newest checkpoint, if any.

        Each object has `state_dict()` and `load_state_dict()`. The metric `train/learning_rate` is that of the object
        named `optimizer`. With several workers, `model` must be wrapped in DistributedDataParallel, as by
        `accelerator.prepare`.

        Raises :class:`TrainingError` for a model that does not exchange gradients or is not that of `build_model()`,
        for an `Accelerator` with a plugin that divides the model, for a checkpoint of objects with other names, and if
        called twice.
        """
        if self._position is not None:
            raise TrainingError("the loop calls register() twice; pass all objects in one call")
        check_no_plugin()
        exchanges = any(isinstance(each, DistributedDataParallel) for each in _unwrapped(model))
        if self._entry.ranks.distributed and not exchanges:
            raise TrainingError(
                f"register() got a {type(model).__name__} as the model, and {self.world_size} workers need a "
                "DistributedDataParallel: pass the model that accelerator.prepare(...) returns"
            )
        self._state.registered = {"model": model, **others}
        if set(self._state.model.state_dict()) != self._names:
            raise TrainingError(
                "register() got a model whose state differs from that of the recipe's build_model: pass the module of "
                "loop.build_model(), as accelerator.prepare(...) or torch.compile(...) returns it"
            )
        with self._entry.heartbeat.kept_beating(0):  # the checkpoint may come from a store
            self._position = self._progress.resume()
        self._state.trained = trained_weights(self._state.model)
        if self._is_first:
            self._entry.note_ready(self._position.step)

    def epochs(self) -> Iterator[int]:
        """Yield the numbers of the remaining epochs; an epoch in which the training resumes has fewer batches.

        The first epoch of a training has the number 0. Raises :class:`TrainingError` if register() was not called, or
        if a loop over the batches ended early.
        """
        if self._position is None:
            raise TrainingError("the loop calls epochs() before register(model=..., optimizer=...)")
        while self._position.step < self._progress.total_steps:
            self._epoch = self._progress.begin_epoch(self._position)
            yield self._epoch.number
            if not self._is_over(self._epoch):
                raise TrainingError(
                    f"the loop left epoch {self._epoch.number} after {self._epoch.in_epoch} of "
                    f"{self._progress.steps_per_epoch} steps; use every batch; to end earlier, set training.max_steps"
                )
            self._position = self._progress.end_epoch(self._epoch)

    def batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield this worker's remaining batches (inputs, targets) of the epoch, on the worker's device.

        Inputs are float32 images (rows, channels, height, width), float32 features (rows, features) or int64 token ids
        (rows, tokens); targets are int64 classes (rows,) or standardised float32 numbers (rows, 1).

        Raises :class:`TrainingError` outside of a loop over epochs(), and if the loop did not count the previous step.
        """
        epoch, clock = self._epoch, self._progress.clock
        if epoch is None:
            raise TrainingError("the loop calls batches() outside of `for epoch in loop.epochs()`")
        fetched = self._feed.batches(epoch.number, epoch.in_epoch)
        while not self._is_over(epoch):
            with clock.time("data wait"):
                self._batch = batch = next(fetched)
            key = stream_key(self.settings.seed, _STEP, epoch.step, self.rank)
            seed_generators(key, self.device.type == "cuda")
            began = time.perf_counter()
            inputs = self._state.inputs.augmented(batch.inputs, batch.rows, epoch.number)
            yield inputs, self._state.targets(batch.targets)
            if self._batch is not None:
                raise TrainingError(f"the loop did not call finish_step(outputs) in step {epoch.step}")
            clock.parts["compute"] = clock.parts.get("compute", 0.0) + time.perf_counter() - began
            self._progress.finish_step(epoch, batch.global_rows)

    @property
    def loss_weight(self) -> float:
        """Multiply this worker's mean loss by this factor before the backward pass.

        DDP then gives the gradient of the mean loss over the rows of all workers. The factor is 1 unless the workers
        have different numbers of rows in the step.
        """
        batch = self._uncounted()
        return len(batch.rows) * self.world_size / batch.global_rows

    def finish_step(self, outputs: torch.Tensor, **metrics: float | torch.Tensor) -> None:
        """Count the step, after the optimizer's update; `outputs` is the model's output for the batch, (rows, outputs).

        `train/loss` and the problem's metric are computed from `outputs`. `metrics` are further values: MLflow
        gets their means over the workers, at steps with a metric point, as `loop/<name>`.

        Raises :class:`TrainingError` if `outputs` has another shape, the step was counted before, or Accelerate
        accumulates gradients over several steps, since checkpoints do not hold gradients.
        """
        from accelerate.state import GradientState

        batch, job = self._uncounted(), self._entry.job
        if not GradientState().sync_gradients:
            raise TrainingError(
                "the loop accumulates gradients over several steps, and checkpoints do not hold gradients: divide the "
                "batch inside of a step, or lower training.global_batch_size"
            )
        wanted = (len(batch.rows), self._objective.outputs(job.dataset))
        if tuple(outputs.shape) != wanted:
            raise TrainingError(
                f"finish_step(outputs): outputs of shape {tuple(outputs.shape)} are not of shape {wanted}; pass the "
                "model's output for the whole batch"
            )
        losses, scores = self._objective.torch_sums(outputs.detach(), batch.targets, job.dataset)
        self._since.add(losses, scores, batch.rows)
        self._state.metrics = {  # tensors stay on the device until a metric point needs their values
            f"loop/{metric_name(name)}": value.detach() if isinstance(value, torch.Tensor) else value
            for name, value in metrics.items()
        }
        optimizer = self._state.registered.get("optimizer")
        if optimizer is not None:
            self._state.rate = optimizer.param_groups[0]["lr"]
        self._batch = None

    @property
    def _since(self) -> Interval:
        assert self._epoch is not None
        return self._epoch.since

    def _uncounted(self) -> Batch:
        if self._batch is None:
            raise TrainingError(
                "loop.loss_weight and finish_step() need a batch of loop.batches() whose step is not counted yet; call "
                "finish_step() once in each step"
            )
        return self._batch

    def _is_over(self, epoch: Epoch) -> bool:
        return epoch.in_epoch == self._progress.steps_per_epoch or epoch.step == self._progress.total_steps
