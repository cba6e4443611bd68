"""The trainer of a recipe that names neither a trainer nor a model, chosen by the kind of the recipe's source."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from training.data.sources import Source
from training.data.sources.sklearn_tables import BundledTable
from training.data.sources.table import Table
from training.data.sources.text import Text
from training.errors import SettingError
from training.settings.schema import Settings, section_of_trainer

if TYPE_CHECKING:
    from torch import nn

    from training.trainers.choice import TrainerChoice

NETWORKS = Path(__file__)  # the file whose functions build the networks; part of the recipe's digest
_SMALL_PX = 64


class DefaultTrainer(NamedTuple):
    """A trainer, and its description for people: what it trains, and for what rows."""

    trainer: "TrainerChoice"
    description: str


def default_trainer(source: Source) -> DefaultTrainer:
    """XGBoost for a table, and the trainer `torch` with a small network for texts or a ResNet-18 for images."""
    from training.recipe import Torch

    if isinstance(source, Table | BundledTable):
        return DefaultTrainer(_XGBoostByDefault(), "xgboost, for a table")
    if isinstance(source, Text):
        return DefaultTrainer(Torch(text_network), "torch with the mean of token embeddings, for text")
    return DefaultTrainer(Torch(image_network), "torch with ResNet-18, for images")


class _XGBoostByDefault:
    """The trainer `xgboost` with its default settings."""

    def adapted(self, settings: Settings) -> Settings:
        """The recipe's settings with the section `training` of XGBoost; see :class:`TrainerChoice`."""
        section = section_of_trainer("xgboost")()
        if settings.training not in (Settings().training, section):
            raise SettingError(
                "settings: for a table, name the trainer of the settings of `training`: trainer=XGBoost(...), or "
                "build_model=... for a PyTorch network"
            )
        return settings.model_copy(update={"training": section})


def image_network(shape: Any, outputs: int) -> "nn.Module":
    """ResNet-18 (He et al. 2016) for images (channels, height, width).

    Images of at most 64 pixels get the first layer of the recipe `cifar10-resnet`, which does not shrink them.
    """
    if max(shape[1:]) <= _SMALL_PX:
        from training.recipes.cifar10_resnet import build_model

        return build_model(shape, outputs)
    from torch import nn
    from torchvision.models import resnet18

    model: nn.Module = resnet18(num_classes=outputs)
    if shape[0] != 3:
        model.conv1 = nn.Conv2d(shape[0], 64, kernel_size=7, stride=2, padding=3, bias=False)
    return model


def text_network(shape: Any, outputs: int) -> "nn.Module":
    """The network of the recipe `rt-polarity`."""
    from training.recipes.rt_polarity import build_model

    return build_model(shape, outputs)
