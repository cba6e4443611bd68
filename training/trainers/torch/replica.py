"""The replica of the trainer `torch`, whose model may start from given weights, or be compiled."""

import torch  # noqa: TID253 - this module is itself imported inside functions
from torch import nn  # noqa: TID253

from training.recipe import Recipe
from training.records import DatasetVersion
from training.settings.schema import Settings
from training.trainers.network.fine_tuning import Started, set_training, start_from
from training.trainers.own_loop.replica import LoopReplica
from training.trainers.ranks import Ranks
from training.trainers.torch.own_settings import own_settings


class Replica(LoopReplica):
    """One worker's replica of the model, with its optimizer.

    The model starts from `initial`, weights by name, of which `training.freeze` are not trained; None: new weights.
    """

    def __init__(
        self,
        recipe: Recipe,
        version: DatasetVersion,
        settings: Settings,
        ranks: Ranks,
        total_steps: int,
        initial: dict[str, torch.Tensor] | None = None,
    ):
        self.initial, self.started = initial, Started()
        super().__init__(recipe, version, settings, ranks, total_steps)

    def build(self, recipe: Recipe) -> nn.Module:
        """See :meth:`LoopReplica.build`."""
        options = own_settings(self.settings)
        module = super().build(recipe)
        self.started = start_from(module, self.initial, options, self.objective.outputs(self.version))
        self.initial = None
        set_training(module, self.frozen)
        self.channels_last = options.channels_last
        if options.channels_last:
            module = module.to(memory_format=torch.channels_last)
        if options.compile:
            # One compiled program per input shape. With dynamic shapes, the program, and so the bits of a step, would
            # depend on which shape came first.
            module.compile(dynamic=False)
        return module

    @property
    def frozen(self) -> list[nn.Module]:
        """The modules that are not trained."""
        return self.started.frozen

    def check_weights(self, weights: dict[str, torch.Tensor]) -> None:
        """See :class:`LoopReplica`; raises :class:`TrainingError` if frozen parts have changed."""
        self.started.check(weights)

    @property
    def no_second_model(self) -> str:
        """See :class:`LoopReplica`."""
        if not own_settings(self.settings).compile:
            return ""
        return "with training.compile, compiling a second model could displace the programs of the first"

    def to_training(self) -> None:
        """Set the module to training mode, and its frozen modules to evaluation mode."""
        set_training(self.module, self.frozen)
