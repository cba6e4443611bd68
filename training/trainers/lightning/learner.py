"""The LightningModule that is trained, and its state, which checkpoints hold as tensors, numbers and text."""

from collections.abc import Callable, Mapping, Set
from typing import Any

import torch  # noqa: TID253 - imported by processes that train
from lightning.pytorch import LightningModule, Trainer  # noqa: TID253
from lightning.pytorch.plugins.io import CheckpointIO  # noqa: TID253

from training.data.dataset import Columns
from training.data.sample_order import Rows, stream_key
from training.errors import SettingError, TrainingError
from training.problems.objectives import objective_named
from training.recipe import Recipe
from training.recipe_metrics import RecipeMetrics
from training.records import DatasetVersion
from training.settings.schema import Settings
from training.trainers.generators import seed_generators
from training.trainers.network.inputs import inputs_of, model_shape
from training.trainers.network.logged_values import mean_of_ranks, metric_name
from training.trainers.network.modules import build_module, check_same_trained, set_trained, trained_weights
from training.trainers.network.plain_state import plain_state
from training.trainers.network.validation import evaluating, mean_over, rows_at_once
from training.trainers.ranks import Ranks

_INITIAL = 3  # stream of random numbers, see training.data.sample_order
_REMEDY = "change what on_save_checkpoint, a callback or a scheduler stores there."


class StateExchange(CheckpointIO):
    """Passes Lightning's checkpoints to Evergreen and back in memory: Lightning's own checkpoint files are pickles."""

    def __init__(self) -> None:
        self.saved: dict[str, Any] = {}
        self.loaded: dict[str, Any] = {}

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Called by Lightning on the first rank."""
        del path, storage_options
        self.saved = checkpoint

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Called by Lightning on every rank."""
        del path, map_location, weights_only
        loaded, self.loaded = self.loaded, {}
        return loaded

    def remove_checkpoint(self, path: Any) -> None:
        """There is no file to remove."""


class Learner:
    """See :class:`training.trainers.network.learner.Learner`.

    Raises :class:`SettingError` if the recipe's function builds no LightningModule.
    """

    trainer: Trainer  # set before the first step
    at_epoch_start: bool = False  # whether Lightning is between two epochs
    trained: frozenset[str] | None = None  # names of the trained weights when this process began to train
    loaded_trained: frozenset[str] | None = None  # those of the checkpoint
    rate: float = 0.0  # learning rate of the newest step

    def __init__(self, recipe: Recipe, version: DatasetVersion, settings: Settings, ranks: Ranks):
        self.version, self.ranks = version, ranks
        self.objective = objective_named(version.problem)
        self.batch_rows = rows_at_once(self.objective, version, settings)
        self.exchange = StateExchange()
        self.step_names: set[str] = set()  # metrics that the module logs in steps, and at ends of epochs
        self.epoch_names: set[str] = set()
        self.logged_in_step: dict[str, float] = {}
        seed_generators(stream_key(settings.seed, _INITIAL), ranks.device.type == "cuda")
        self.module = _lightning_module(recipe, model_shape(version), self.objective.outputs(version))
        self.inputs = inputs_of(recipe, version, settings, ranks.device)
        self.metrics = RecipeMetrics(recipe.name, recipe.metrics, version, ranks.device)

    @property
    def unit(self) -> str:
        """See :class:`training.trainers.network.inputs.Inputs`."""
        return self.inputs.unit

    def state(self) -> dict[str, Any]:
        """Lightning's checkpoint without hyperparameters, which the recipe sets; empty on all ranks but the first.

        Raises :class:`TrainingError` for a part that is neither tensor, number nor text, for a state that lacks a part
        of the module's, and, with several workers, for weights that were frozen or unfrozen meanwhile.
        """
        if self.trained is not None and self.ranks.distributed:
            check_same_trained(self.module, self.trained)
        self.trainer.save_checkpoint("checkpoint")
        checkpoint, self.exchange.saved = self.exchange.saved, {}
        if not self.ranks.is_first:
            return {}
        if missing := self.module.state_dict().keys() - checkpoint["state_dict"].keys():
            raise TrainingError(
                f"on_save_checkpoint removes {min(missing)} and {len(missing) - 1} more from the state of the module. "
                "Checkpoint and finished model need the whole state: leave it as it is."
            )
        if self.at_epoch_start:
            _forget_announced_epoch(checkpoint)
        rest = {
            name: part
            for name, part in checkpoint.items()
            if name != "state_dict" and not name.startswith(("hparams_", "hyper_parameters", "datamodule_"))
        }
        return {
            "model": checkpoint["state_dict"],
            "lightning": plain_state(rest, "Lightning's checkpoint", _REMEDY),
            "trained": sorted(trained_weights(self.module)),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Keep the state until Lightning loads it, when the Trainer starts."""
        self.exchange.loaded = state["lightning"] | {"state_dict": state["model"]}
        self.loaded_trained = frozenset(state["trained"])

    def begin_training(self) -> None:
        """Freeze and unfreeze weights as the checkpoint says, after the hooks of the training's start."""
        if self.loaded_trained is not None:
            set_trained(self.module, self.loaded_trained)
        self.trained = trained_weights(self.module)

    def same_weights(self) -> list[torch.Tensor]:
        """See :class:`training.trainers.network.learner.Learner`."""
        return list(self.module.parameters())

    def changed_by_update_alone(self) -> Set[int]:
        """Empty: in its hooks, a LightningModule may change any tensor at any time."""
        return frozenset()

    def learning_rate(self, step: int) -> float:
        """Learning rate of the first optimizer in step `step`, the newest step."""
        del step
        return self.rate

    def targets(self, targets: torch.Tensor) -> torch.Tensor:
        """See :meth:`training.problems.objectives.Objective.torch_targets`."""
        return self.objective.torch_targets(targets, self.version)

    def note_logged(self) -> None:
        """Keep what the module has logged in the step by `self.log`."""
        callback_metrics = self.trainer.callback_metrics
        self.step_names |= set(callback_metrics) - self.epoch_names
        self.logged_in_step = _values(callback_metrics, self.step_names)

    def logged(self, at_epoch_end: bool) -> dict[str, float]:
        """What the module logs by `self.log`, as `lightning/<name>`, and the recipe's metrics.

        The values are means over the ranks, also without `sync_dist`; values that are not finite are left out.

        Lightning keeps the newest value of each name, so a name that is logged at the end of an epoch would also appear
        in the steps of the next epoch: each name is reported in steps only, or at ends of epochs only.
        """
        if not at_epoch_end:
            return mean_of_ranks(self.logged_in_step, self.ranks)
        callback_metrics = self.trainer.callback_metrics
        self.epoch_names |= set(callback_metrics) - self.step_names
        return (
            mean_of_ranks(_values(callback_metrics, self.epoch_names), self.ranks)
            | self.metrics.of_validation()
        )

    def validate(self, columns: Columns, rows: Rows, progress: Callable[[], None]) -> tuple[float, float]:
        """Mean loss and metric over `rows`, computed by all ranks together; calls `progress` after each batch."""

        def forward(inputs: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.module(self.inputs.plain(inputs))
            return output

        with evaluating(self.module), self.trainer.precision_plugin.forward_context():
            return mean_over(
                self.module,
                forward,
                self.version,
                self.ranks,
                columns,
                rows,
                self.batch_rows,
                progress,
                self.metrics,
            )


def _lightning_module(recipe: Recipe, shape: tuple[int, ...], outputs: int) -> LightningModule:
    module = build_module(recipe, shape, outputs)
    if not isinstance(module, LightningModule):
        raise SettingError(
            f"recipe {recipe.name}: trainer=Lightning(...) needs a function that returns a LightningModule of the "
            f"package lightning (not pytorch_lightning), and it returned a {type(module).__name__}; for a module "
            "without training_step use trainer=Torch(build_model)"
        )
    return module


def _forget_announced_epoch(checkpoint: dict[str, Any]) -> None:
    """Change a checkpoint that Lightning saved between two epochs, so that a resumed training runs the next epoch.

    The checkpoint counts the next epoch as begun, and Lightning would skip the batches of that epoch.
    """
    progress = checkpoint["loops"]["fit_loop"]["epoch_progress"]
    for counts in (progress["total"], progress["current"]):
        counts["ready"] = counts["started"]


def _values(metrics: Mapping[str, torch.Tensor], names: Set[str]) -> dict[str, float]:
    return {
        "lightning/" + metric_name(name): float(metrics[name]) for name in sorted(names) if name in metrics
    }
