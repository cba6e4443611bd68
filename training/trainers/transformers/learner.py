"""The model that the Trainer of Transformers trains, and its state, which checkpoints hold as tensors and numbers."""

from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Any

import torch  # noqa: TID253 - imported by processes that train

from training.data.dataset import Columns
from training.data.sample_order import Rows, stream_key
from training.problems.objectives import objective_named
from training.recipe import Recipe
from training.recipe_metrics import RecipeMetrics
from training.records import DatasetVersion
from training.settings.schema import Settings
from training.trainers.generators import seed_generators
from training.trainers.network.fine_tuning import set_training, start_from
from training.trainers.network.inputs import inputs_of, model_shape
from training.trainers.network.modules import build_module, recipe_module
from training.trainers.network.plain_state import plain_state
from training.trainers.network.validation import evaluating, mean_over, rows_at_once
from training.trainers.ranks import Ranks
from training.trainers.transformers.logits import logits, model_inputs
from training.trainers.transformers.own_settings import own_settings

if TYPE_CHECKING:
    from transformers import Trainer

_INITIAL = 3  # stream of random numbers, see training.data.sample_order
_REMEDY = "use another training.optim or training.lr_scheduler_type."


class Learner:
    """See :class:`training.trainers.network.learner.Learner`. The model starts from `initial`; None: new weights.

    `trainer` is set before the first step.
    """

    trainer: "Trainer"
    rate: float = 0.0  # learning rate of the newest step

    def __init__(
        self,
        recipe: Recipe,
        version: DatasetVersion,
        settings: Settings,
        ranks: Ranks,
        initial: dict[str, torch.Tensor] | None = None,
    ):
        self.version, self.ranks = version, ranks
        self.objective = objective_named(version.problem)
        self.batch_rows = rows_at_once(self.objective, version, settings)
        self.loaded: dict[str, Any] = {}
        seed_generators(stream_key(settings.seed, _INITIAL), ranks.device.type == "cuda")
        outputs = self.objective.outputs(version)
        module = build_module(recipe, model_shape(version), outputs)
        self.started = start_from(module, initial, own_settings(settings), outputs)
        self.model: torch.nn.Module = recipe_module(module).to(ranks.device)
        self.padding = getattr(module, "padding", 0)
        self.inputs = inputs_of(recipe, version, settings, ranks.device)
        self.metrics = RecipeMetrics(recipe.name, recipe.metrics, version, ranks.device)

    @property
    def unit(self) -> str:
        """See :class:`training.trainers.network.inputs.Inputs`."""
        return self.inputs.unit

    def set_training(self) -> None:
        """Set the model to training mode, and its frozen modules to evaluation mode, which the Trainer would not do."""
        set_training(self.model, self.started.frozen)

    def arguments(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Arguments of the model by name, for converted inputs."""
        return model_inputs(inputs, self.padding)

    def _parts(self) -> dict[str, Any]:
        """The objects with state besides the model; Accelerate's loss scaler exists in float16 only."""
        scaler = self.trainer.accelerator.scaler
        parts = {"optimizer": self.trainer.optimizer, "schedule": self.trainer.lr_scheduler}
        return parts | ({} if scaler is None else {"scaler": scaler})

    def state(self) -> dict[str, Any]:
        """Weights, optimizer, schedule and loss scaler."""
        parts = {
            name: plain_state(part.state_dict(), f"the state of the {name}", _REMEDY)
            for name, part in self._parts().items()
        }
        return {"model": self.model.state_dict()} | parts

    def load(self, state: dict[str, Any]) -> None:
        """Load the weights, and keep the rest until the Trainer has built optimizer and schedule."""
        self.model.load_state_dict(state["model"])
        self.loaded = state

    def load_parts(self) -> None:
        """Restore what :meth:`load` kept, if anything."""
        loaded, self.loaded = self.loaded, {}
        for name, part in self._parts().items():
            if loaded:
                part.load_state_dict(loaded[name])

    def same_weights(self) -> list[torch.Tensor]:
        """See :class:`training.trainers.network.learner.Learner`."""
        return list(self.model.parameters())

    def changed_by_update_alone(self) -> Set[int]:
        """Empty: the recipe's model may change any tensor at any time."""
        return frozenset()

    def learning_rate(self, step: int) -> float:
        """Learning rate of the first parameter group in step `step`, the newest step."""
        del step
        return self.rate

    def logged(self, at_epoch_end: bool) -> dict[str, float]:
        """At the end of an epoch, the metrics of the recipe."""
        return self.metrics.of_validation() if at_epoch_end else {}

    def validate(self, columns: Columns, rows: Rows, progress: Callable[[], None]) -> tuple[float, float]:
        """Mean loss and metric over `rows`, computed by all ranks together; calls `progress` after each batch."""

        def forward(inputs: torch.Tensor) -> torch.Tensor:
            return logits(self.model, self.arguments(self.inputs.plain(inputs)))

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
                self.metrics,
            )
