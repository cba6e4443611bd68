"""The trainer of a recipe that names neither a trainer nor a model, chosen by the recipe's source and problem."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from training.data.sources import Source
from training.data.sources.sklearn_tables import BundledTable
from training.data.sources.table import Table
from training.data.sources.text import Text
from training.default_language_model import FROM_SCRATCH, language_model
from training.errors import SettingError
from training.problems.base import Problem
from training.settings.schema import Settings, TrainerName, section_of_trainer
from training.torch_choice import BuildModel, Torch

if TYPE_CHECKING:
    from torch import nn

    from training.trainers.choice import TrainerChoice

_SMALL_PX = 64


class DefaultTrainer(NamedTuple):
    """A trainer, its description for people (what it trains, and for what rows), and the file that builds its network.

    The file is part of the recipe's digest.
    """

    trainer: "TrainerChoice"
    description: str
    file: Path


def default_trainer(source: Source, problem: Problem) -> DefaultTrainer:
    """A trainer for the recipe's rows and problem.

    XGBoost for a table; for texts the trainer `torch` with a small network, or `transformers` with a small GPT-2 if the
    texts themselves are predicted; for images the trainer `torch` with a ResNet-18. Raises :class:`SettingError` for a
    problem without a default model.
    """
    if problem.needs_model:
        raise SettingError(problem.needs_model)
    here = Path(__file__)
    if problem.predicts_text:
        trainer = _ByDefault(
            "transformers", "a language model", "Transformers(build_model, ...)", language_model, FROM_SCRATCH
        )
        file = Path(language_model.__code__.co_filename)
        return DefaultTrainer(trainer, "transformers with a small GPT-2, for a language model", file)
    if isinstance(source, Table | BundledTable):
        trainer = _ByDefault("xgboost", "a table", "XGBoost(...), or build_model=... for a PyTorch network")
        return DefaultTrainer(trainer, "xgboost, for a table", here)
    if isinstance(source, Text):
        return DefaultTrainer(Torch(text_network), "torch with the mean of token embeddings, for text", here)
    return DefaultTrainer(Torch(image_network), "torch with ResNet-18, for images", here)


@dataclass(frozen=True)
class _ByDefault:
    """A trainer with its default settings, or those in `values`.

    `rows` and `remedy` are parts of the error message for other settings.
    """

    name: TrainerName
    rows: str
    remedy: str
    build_model: BuildModel | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    def adapted(self, settings: Settings) -> Settings:
        """The recipe's settings with the section `training` of the trainer; see :class:`TrainerChoice`."""
        section = section_of_trainer(self.name).model_validate(self.values)
        if settings.training not in (Settings().training, section):
            raise SettingError(
                f"settings: the recipe changes settings of `training`, so it must name their trainer; for {self.rows}: "
                f"trainer={self.remedy}"
            )
        return settings.model_copy(update={"training": section})


def image_network(shape: Any, outputs: int) -> "nn.Module":
    """ResNet-18 (He et al. 2016) for images (channels, height, width).

    Images of at most 64 x 64 pixels get the first layer of the recipe `cifar10-resnet`, which keeps their size.
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
    """The network of the recipe `rt-polarity-mean`."""
    from training.recipes.rt_polarity_mean import build_model

    return build_model(shape, outputs)
