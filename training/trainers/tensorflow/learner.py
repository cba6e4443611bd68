"""The model that is trained with TensorFlow, its optimizer, and their state as tensors."""

from collections.abc import Callable, Set
from typing import Any, cast

import numpy as np
import torch  # noqa: TID253 - imported by processes that train

from training.data.dataset import Columns
from training.data.sample_order import Rows, stream_key
from training.problems.objectives import objective_named
from training.recipe import Recipe
from training.recipe_metrics import RecipeMetrics
from training.records import DatasetVersion
from training.settings.schema import Settings
from training.trainers.generators import seed_generators
from training.trainers.network.feeds import Batch
from training.trainers.network.inputs import inputs_of
from training.trainers.network.validation import rows_at_once, sums_over
from training.trainers.own_loop.schedule import learning_rate
from training.trainers.ranks import Ranks
from training.trainers.tensorflow.library import tensorflow_keras
from training.trainers.tensorflow.model import assign, build_model, generators_of, numbered, read, weights_of
from training.trainers.tensorflow.objectives import loss_of
from training.trainers.tensorflow.own_settings import own_settings

_INITIAL, _STEP = 3, 4  # streams of random numbers, see training.data.sample_order


class Learner:
    """See :class:`training.trainers.network.learner.Learner`. `strategy` joins the workers."""

    def __init__(
        self,
        recipe: Recipe,
        version: DatasetVersion,
        settings: Settings,
        ranks: Ranks,
        strategy: Any,
        total: int,
    ):
        self.version, self.settings, self.ranks = version, settings, ranks
        self.strategy, self.total_steps = strategy, total
        self.objective = objective_named(version.problem)
        keras = tensorflow_keras()
        key = stream_key(settings.seed, _INITIAL)
        keras.utils.set_random_seed(int(key >> np.uint64(33)))
        seed_generators(key)
        with strategy.scope():
            self.model = build_model(recipe, version.shape, self.objective.outputs(version))
            self.optimizer = _optimizer(keras, settings)
            self.optimizer.build(self.model.trainable_variables)
        self.weights, self.generators = weights_of(self.model), generators_of(self.model)
        trained = {id(variable) for variable in self.model.trainable_variables}
        self.statistics = {
            name: variable for name, variable in self.weights.items() if id(variable) not in trained
        }
        self.inputs = inputs_of(recipe, version, settings, torch.device("cpu"))
        self.metrics = RecipeMetrics(recipe.name, recipe.metrics, version, torch.device("cpu"))
        self._train, self._forward = _compiled(self.model, self.optimizer, strategy, loss_of(version))

    @property
    def unit(self) -> str:
        """See :class:`training.trainers.network.inputs.Inputs`."""
        return self.inputs.unit

    def train(self, batch: Batch, epoch: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute step `step` of the training; returns the sums of losses and of the metric, on this worker."""
        images = self.inputs.augmented(batch.inputs, batch.rows, epoch)
        wanted = self.objective.torch_targets(batch.targets, self.version)
        # Seeded for each step, so that checkpoints need not hold the states of the generators.
        key = int(stream_key(self.settings.seed, _STEP, step, self.ranks.rank) >> np.uint64(33))
        for number, state in enumerate(self.generators):
            state.assign(np.array([key, number], np.uint32))
        self.optimizer.learning_rate = self.learning_rate(step)
        output = self._train(_channels_last(images), wanted.numpy(), np.float32(batch.global_rows))
        return self.objective.torch_sums(torch.from_numpy(output.numpy()), batch.targets, self.version)

    def state(self) -> dict[str, Any]:
        """The variables of the model and of the optimizer; empty on all ranks but the first."""
        if not self.ranks.is_first:
            return {}
        return {"model": read(self.weights), "optimizer": read(numbered(self.optimizer.variables))}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state that :meth:`state` returned."""
        assign(self.weights, state["model"])
        assign(numbered(self.optimizer.variables), state["optimizer"])

    def same_weights(self) -> list[torch.Tensor]:
        """See :class:`training.trainers.network.learner.Learner`."""
        return [torch.from_numpy(np.array(variable.numpy())) for variable in self.model.trainable_variables]

    def changed_by_update_alone(self) -> Set[int]:
        """Empty: the tensors of :meth:`state` are copies."""
        return frozenset()

    def learning_rate(self, step: int) -> float:
        """The learning rate of optimizer step `step`."""
        return learning_rate(cast(Any, own_settings(self.settings)), step, self.total_steps)

    def validate(self, columns: Columns, rows: Rows, progress: Callable[[], None]) -> tuple[float, float]:
        """See :class:`training.trainers.network.learner.Learner`.

        First, all ranks get the moving statistics of the first rank, which the checkpoint holds.
        """
        if self.ranks.distributed:
            for variable in self.statistics.values():
                value = torch.from_numpy(np.array(variable.numpy()))
                torch.distributed.broadcast(value, src=0)
                variable.assign(value.numpy())

        def forward(inputs: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(self._forward(_channels_last(self.inputs.plain(inputs))).numpy())

        mine = rows[self.ranks.rank :: self.ranks.world_size]
        sums = sums_over(
            forward,
            self.objective,
            self.version,
            torch.device("cpu"),
            columns,
            mine,
            rows_at_once(self.objective, self.version, self.settings),
            progress,
            self.metrics,
        )
        loss, score, count = self.ranks.add_up(*sums, len(mine))
        return loss / count, self.objective.reduced(score, count)

    def logged(self, at_epoch_end: bool) -> dict[str, float]:
        """The recipe's metrics, at the ends of epochs."""
        return self.metrics.of_validation() if at_epoch_end else {}


def _channels_last(images: torch.Tensor) -> Any:
    return images.permute(0, 2, 3, 1).contiguous().numpy()


def _optimizer(keras: Any, settings: Settings) -> Any:
    own = own_settings(settings)
    if own.optimizer == "adamw":  # AdamW refuses None, and the others 0
        return keras.optimizers.AdamW(learning_rate=own.learning_rate, weight_decay=own.weight_decay)
    options = {"learning_rate": own.learning_rate, "weight_decay": own.weight_decay or None}
    if own.optimizer == "sgd":
        return keras.optimizers.SGD(momentum=own.momentum, **options)
    return keras.optimizers.Adam(**options)


def _compiled(model: Any, optimizer: Any, strategy: Any, loss: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """The step and the forward pass as functions that TensorFlow compiles to graphs; both return the output."""
    import tensorflow

    def step(images: Any, targets: Any, global_rows: Any) -> Any:
        with tensorflow.GradientTape() as tape:
            output = model(images, training=True)
            # The optimizer adds up the gradients of all workers, so each divides by the rows of all.
            mean = loss(output, targets) / global_rows
        gradients = tape.gradient(mean, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return output

    def forward(images: Any) -> Any:
        return model(images, training=False)

    def train(images: Any, targets: Any, global_rows: Any) -> Any:
        return strategy.run(step, args=(images, targets, global_rows))

    def compute(images: Any) -> Any:
        return strategy.run(forward, args=(images,))

    def compiled(function: Callable[..., Any]) -> Any:
        return tensorflow.function(function, reduce_retracing=True)

    return compiled(train), compiled(compute)
